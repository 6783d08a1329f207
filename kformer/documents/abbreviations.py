"""Abbreviations by language, for what a general splitter of sentences gets wrong.

`BEFORE` stand before a name or a number, so no sentence ends after them. `ENDING` often end a
sentence: it ends there if the next word is one of `STARTERS`, which are capitalized elsewhere only
by chance. Names of languages are codes of two letters.
"""

_TITLES = (
    "Mr Mrs Ms Mx Dr Prof St Sr Sra Mme Mlle Mgr Me Mt Rev Fr Gen Col Maj Capt Cpt Lt Sgt Cmdr Adm "
    "Gov Sen Rep Hon Pres Messrs Drs MM Mmes Mlles Vve Pr Ing Dipl Mag Hr Fr Frl Hrn Dres"
)
_REFERENCES = (
    "Fig Figs Eq Eqs Ch Chap Sec Sect Vol Vols Ed Eds pp Art No Nos Nr Abb Abs Bd Kap Tab Tel Str "
    "cf vs viz ca approx resp op cit al"
)
BEFORE = {
    "en": f"{_TITLES} {_REFERENCES} e.g i.e Ave Blvd Ft Mt U.K U.S.S dept est",
    "de": f"{_TITLES} {_REFERENCES} z.B d.h u.a i.d.R u.U z.T o.g s.o s.u v.a v.Chr n.Chr i.e e.g "
    "bzw bspw ggf evtl inkl exkl zzgl bzgl vgl sog geb gest usf Hl Jh Jg Hbf ehem einschl etw "
    "dgl Aufl Ausg Bearb Hrsg hrsg m.E z.Zt a.D b.w allg Min Std Mio Mrd Tsd Mo Di Mi Do Sa So "
    "Jan Feb Apr Aug Sept Okt Nov Dez St Sankt max min",
    "fr": f"{_TITLES} {_REFERENCES} M p.ex c.-à-d chap art av boul bd env éd ex fig hab janv févr "
    "max min env col juil sept oct nov déc n° no nos p pp rd réf s.v t.c tél vol apr J.-C",
    "es": f"{_TITLES} {_REFERENCES} Sra Srta D Dña Ud Uds Vd p.ej pág págs núm Avda EE EE.UU",
    "it": f"{_TITLES} {_REFERENCES} sig dott ing avv prof pag es p.es",
    "nl": f"{_TITLES} {_REFERENCES} dhr mevr bijv d.w.z o.a t.a.v nr blz",
    "pt": f"{_TITLES} {_REFERENCES} Sra Dra Exmo p.ex pág núm",
}
ENDING = {
    "en": "etc a.m p.m Inc Ltd Co Corp Jr Sr Ph.D M.D B.A M.A D.C U.S U.S.A U.K E.U Bros B.C A.D "
    "et.al St Ave Rd Blvd Sq",
    "de": "usw etc usf u.a o.ä u.ä u.dgl u.s.w Co Str Nr n.Chr v.Chr Uhr Jh Mio Mrd a.D Std Min Jr "
    "Inc Ltd",
    "fr": "etc Cie Inc Ltd Co av.J.-C apr.J.-C J.-C S.A Jr",
    "es": "etc S.A Cía",
    "it": "ecc S.p.A",
    "nl": "enz etc N.V B.V",
    "pt": "etc S.A Cia",
}
_ENGLISH = (
    "A An The This That These Those He She It We You They I My His Her Its Our Your Their There "
    "Here Then Now And But Or So If When While After Before In On At For With From To As By Not No "
    "Yes What Who Why How Where Which Nobody Everyone Everybody Someone All Some Many Most Both "
    "Each Every Later Today Yesterday Tomorrow However Please Let Do Does Did Is Are Was Were Can "
    "Could Will Would Should Nothing Only Two Three Once Meanwhile"
)
_GERMAN = (
    "Er Sie Es Wir Ihr Ich Du Man Das Der Die Dem Den Des Ein Eine Einen Einem Einer Dann Danach "
    "Dort Hier Aber Und Oder Denn Doch Nun Jetzt Heute Gestern Morgen Später Da Dabei Dazu Darum "
    "Deshalb Trotzdem Wenn Als Weil Ob Wo Wer Was Wie Warum Alle Alles Viele Manche Niemand Jeder "
    "Jede Jedes Diese Dieser Dieses Mein Meine Sein Seine Ihre Unser Unsere Nach Vor Bei Mit Im In "
    "Am An Auf Aus Von Vom Zu Zum Zur Für Nicht Kein Keine Auch Nur Schon Noch So Bitte Ja Nein "
    "Siehe Zwei Drei Beide Anschließend Zuerst Zuletzt Sonst Leider Außerdem"
)
_FRENCH = (
    "Il Elle Ils Elles Nous Vous Je Tu On Le La Les Un Une Des Ce Cet Cette Ces Cela Ça Mon Ma Mes "
    "Son Sa Ses Notre Nos Votre Vos Leur Leurs Puis Ensuite Alors Mais Et Ou Donc Or Car Si Quand "
    "Lorsque Après Avant Dans En Sur Sous Pour Par Avec Sans Chez À Au Aux Ici Là Aujourd'hui Hier "
    "Demain Maintenant Personne Tout Toute Tous Toutes Chaque Quelques Plusieurs Rien Oui Non Qui "
    "Que Quoi Pourquoi Comment Où Deux Trois Enfin Cependant Pourtant"
)
STARTERS = {"en": _ENGLISH, "de": _GERMAN, "fr": _FRENCH}
