"""A sentence to try, for each language that a source may have."""

_SENTENCES = {
    "ar": "القطة نائمة على السجادة أمام الموقد.",
    "cs": "Dvě děti si hrají na sněhu před starým domem.",
    "de": "Zwei Kinder spielen im Schnee vor einem alten Haus.",
    "en": "Two children are playing in the snow in front of an old house.",
    "es": "Dos niños juegan en la nieve delante de una casa vieja.",
    "fa": "دو کودک در برف جلوی خانه‌ای قدیمی بازی می‌کنند.",
    "fi": "Kaksi lasta leikkii lumessa vanhan talon edessä.",
    "fr": "Deux enfants jouent dans la neige devant une vieille maison.",
    "he": "שני ילדים משחקים בשלג לפני בית ישן.",
    "hi": "दो बच्चे एक पुराने घर के सामने बर्फ में खेल रहे हैं।",
    "it": "Due bambini giocano nella neve davanti a una vecchia casa.",
    "ja": "二人の子どもが古い家の前の雪の中で遊んでいます。",
    "ko": "두 아이가 오래된 집 앞 눈밭에서 놀고 있습니다.",
    "nl": "Twee kinderen spelen in de sneeuw voor een oud huis.",
    "pl": "Dwoje dzieci bawi się na śniegu przed starym domem.",
    "pt": "Duas crianças brincam na neve em frente a uma casa velha.",
    "ru": "Двое детей играют в снегу перед старым домом.",
    "sv": "Två barn leker i snön framför ett gammalt hus.",
    "tr": "İki çocuk eski bir evin önünde karda oynuyor.",
    "uk": "Двоє дітей граються в снігу перед старим будинком.",
    "vi": "Hai đứa trẻ đang chơi trong tuyết trước một ngôi nhà cũ.",
    "zh": "两个孩子在一座老房子前的雪地里玩耍。",
}


def example_for(language):
    """A sentence in a language.

    Args:
        language: str or `None`. Its code.

    Returns:
        str. English where the language is not known, and an empty one where it has no sentence.
    """
    if not language:
        return _SENTENCES["en"]
    return _SENTENCES.get(language.replace("-", "_").split("_")[0].lower(), "")
