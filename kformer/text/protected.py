"""Texts that come out as they went in: addresses, placeholders, code, and numbers with units."""

import re

# What a program fills in or a reader types: the model does not see it.
HIDDEN, VISIBLE = "hidden", "visible"

# Latin, Greek and Cyrillic. Chinese has no spaces around an address.
_LETTERS = r"A-Za-z0-9\u00c0-\u04ff"
_URL = r"""(?:https?|ftp|file)://[^\s<>"'`|{}\u3000-\u303f\uff00-\uffef\u4e00-\u9fff]+"""
_WWW = rf"""www\.[{_LETTERS}-]+\.[^\s<>"'`|{{}}\u3000-\u303f\uff00-\uffef\u4e00-\u9fff]+"""
_MAIL = rf"[{_LETTERS}._%+-]{{1,64}}@[{_LETTERS}-]{{1,63}}(?:\.[{_LETTERS}-]{{1,63}})+"
# No letter of Latin, Greek or Cyrillic follows. Chinese has no spaces.
_END = r"(?![\dA-Za-z_\u00c0-\u04ff])"
# %-5d, %.*s, %1$@, %I64d, where no catalogue says that "100% sure" has none.
# Of Apple's stringsdict.
_VARIABLE = r"%(?:\d{1,2}\$)?#@\w{1,60}@|"
_PRINTF = (
    _VARIABLE + r"%(?:\d{1,2}\$)?[-#0+']{0,3}(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?"
    r"(?:hh|ll|I64|I32|[hlLzjtq])?(?:[diouxXeEfFgGcrsaApmCS]" + _END + "|@)"
)
_PLACEHOLDERS = (
    r"\{\{[^{}\n]{1,80}\}\}",  # {{ name }}
    r"\{%[^{}\n]{1,80}%\}",  # {% block %}
    r"\$\{[^{}\n]{1,80}\}",  # ${name}
    r"%\{\w{1,60}\}|\$t\([^()\n]{1,80}\)",  # %{name}, $t(key)
    r"\{ {0,2}[A-Za-z_]?[\w.\[\]]{0,60}(?:![rsa])?(?::[^{}\n]{0,20})? {0,2}\}",  # {0}, {name:.2f}
    r"%\([A-Za-z_]\w{0,60}\)[-#0 +]{0,3}\d{0,3}(?:\.\d{1,3})?[a-zA-Z]",  # %(name)s
    _PRINTF,
    r"%(?:\d{1,2}%|%|<\w{1,60}>[a-zA-Z]|(?:L?\d{1,2}|n)" + _END + ")",  # %1% %% %<name>s %L1 %n
    r"%[HMSYmdyjBbAaIpZz](?:[:/. -]?%[HMSYmdyjBbAaIpZz])+" + _END,  # %H:%M
    r"\{\s{0,2}\w{1,60}\s{0,2},\s{0,2}(?:number|date|time|spellout|ordinal|duration)\b[^{}\n]{0,80}\}",
    r"\$[A-Z_][A-Z0-9_]{1,60}" + _END,  # $NAME
)
_PERCENT = (
    r"%(?:\d{1,2}\$)?[-#0+' ]*(?:\d{1,4}|\*(?:\d{1,2}\$)?)?(?:\.(?:\d{1,4}|\*(?:\d{1,2}\$)?)?)?"
    r"(?:hh|ll|I64|I32|[hlLzjtq])?"
)
_C = _PERCENT + r"(?:[diouxXeEfFgGaAcCsSpnm%]|<PRI\w{2,12}>)"
_PYTHON = r"%(?:\(\w{1,60}\))?[-#0+ ]*(?:\d{1,4}|\*)?(?:\.(?:\d{1,4}|\*))?[hlL]?[diouxXeEfFgGcrsa%]"
_BRACES = r"\{\{|\}\}|\{[^{}\n]{0,80}(?:\{[^{}\n]{0,40}\}[^{}\n]{0,40}){0,4}\}"
_QT = r"%(?:L?\d{1,2}|L?n)"
# The placeholders of messages, by gettext's names for their kinds.
PLACEHOLDERS = {
    "c-format": _C,
    "objc-format": _VARIABLE + _PERCENT + r"[diouxXeEfFgGaAcCsSpnmDUO@%]",
    "python-format": _PYTHON,
    "python-brace-format": _BRACES,
    "java-format": r"\{\s*\d{1,2}\s*(?:,[^{}]{0,80})?\}",
    "java-printf-format": r"%(?:\d{1,2}\$|<)?[-#+ 0,(]*\d{0,4}(?:\.\d{1,4})?(?:[tT]?[a-zA-Z]|%)",
    "csharp-format": _BRACES,
    "c++-format": _BRACES,
    "rust-format": _BRACES,
    "qt-format": _QT,
    "qt-plural-format": _QT,
    "kde-format": r"%\d{1,2}",
    "boost-format": rf"%\d{{1,2}}%|%\|[^|\n]{{1,40}}\||{_C}",
    "php-format": _PERCENT + r"[bcdeEufFgGosxX%]",
    "ruby-format": rf"%<\w{{1,60}}>[-#0+ ]*[\d.]{{0,8}}[a-zA-Z]|%\{{\w{{1,60}}\}}|{_PYTHON}",
    "perl-brace-format": r"\{\w{1,60}\}",
    "javascript-format": _C,
    "lua-format": _C,
    "printf": _PRINTF + "|%%",
    "sh-format": r"\$(?:\w{1,60}|\{\w{1,60}\})",
}
PLACEHOLDERS = {name: re.compile(pattern) for name, pattern in PLACEHOLDERS.items()}
_CODE = (r"``[^`\n]{1,200}``", r":[a-z][a-z:+-]{1,30}:`[^`\n]{1,200}`", r"`[^`\n]{1,200}`_{0,2}")
_UNITS = (
    "km/h m/s km² m² m³ cm² km cm mm µm nm m kg mg µg g t ml cl dl l L ms µs ns min h s Hz kHz "
    "MHz GHz kW MW kWh W V mV mA Ah mAh kJ kcal Pa hPa kPa bar °C °F ° dB px pt em rem bit kB "
    "KB MB GB TB KiB MiB GiB Mbit/s Gbit/s Mbps Gbps ft mph lb oz % ‰ € \\$ £ ¥ EUR USD GBP "
    "CNY"
).split()
_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))
_AMOUNT = r"\d{1,30}(?:[.,\u00a0\u202f]\d{1,30}){0,10}"
_NUMBER = (
    rf"(?<![\w.,])(?:[€$£¥]\s?{_AMOUNT}(?![\w])"
    rf"|[-−+±]?{_AMOUNT}[ \u00a0\u202f]?(?:{_UNIT})(?![A-Za-z0-9²³/]))"
)
_HIDDEN = re.compile("|".join([*_CODE, _URL, _WWW, _MAIL, *_PLACEHOLDERS]))
_VISIBLE = re.compile(_NUMBER)
# What ends a sentence and not an address.
_BEHIND = ".,;:!?)]}'\"»”’…*_"


def protected(text):
    """Returns the slices of a text that come out as they went in.

    Args:
        text: str.

    Returns:
        List of tuples of start, end and kind, in their order: `HIDDEN` for what a model need not
        see, such as an address, `VISIBLE` for a number with its unit.
    """
    slices = [(*match.span(), VISIBLE) for match in _VISIBLE.finditer(text)]
    for match in _HIDDEN.finditer(text):
        end, address = match.end(), match[0]
        if "://" in address or address.startswith("www."):
            # Without what ends the sentence, and brackets that were not opened.
            num_closed = address.count(")") - address.count("(")
            while end > match.start() and text[end - 1] in _BEHIND:
                if text[end - 1] == ")":
                    if num_closed <= 0:
                        break
                    num_closed -= 1
                end -= 1
        slices.append((match.start(), end, HIDDEN))
    return without_overlaps(sorted(slices))


def without_overlaps(slices):
    """Returns sorted slices without those that overlap one before them."""
    chosen = []
    for each in slices:
        if not chosen or each[0] >= chosen[-1][1]:
            chosen.append(each)
    return chosen
