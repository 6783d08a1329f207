"""Sentences that are hard to part: abbreviations, numbers, quotations, initials. All were written
for this test. `{a}`, `{b}` and `{n}` are filled with names and numbers.
"""

import random

_NAMES = {
    "en": "Dr. Smith|Mr. J. R. Brown|Mrs. Hall|Prof. Lee|A. B. Clark|St. John|Ms. O'Neill",
    "de": "Dr. Müller|Herr J. Weber|Prof. Dr. Schmidt|Frau K. L. Braun|St. Martin|Ing. Bauer",
    "fr": "M. Dupont|Mme. Durand|le Dr. Martin|J.-P. Moreau|Mlle Petit|MM. Roux et Blanc",
    "zh": "王先生|A.B.公司|李老师|Dr. Smith|小明|J.K.罗琳|张医生",
}
_TEMPLATES = {
    "en": """
{a} came at 5 p.m. on Monday.
We met {a} and {b} at the station.
It costs $3.50, not $4.
He lives at No. {n} Park Ave. near the river.
See Fig. {n} for the details.
The U.S. Senate voted at noon.
They sell apples, pears, plums, etc.
She works for Acme Inc.
He said, "I will come at {n}."
"Where is {a}?" she asked.
"Stop!" he cried.
The value rose by 2.{n} percent.
Version 1.{n}.2 is out.
{b} wrote the letter in Jan. 1999.
Is it true?
Yes.
No!
I do not know, i.e. nobody told me.
Some animals, e.g. dogs, sleep a lot.
The train leaves at 6 a.m. from platform {n}.
Then... nothing happened.
Wait... what was that?
The meeting (see p. {n}) was short.
(It rained all day.)
He is {n} ft. tall and weighs 80 kg.
We read Vol. {n} of the book by {a}.
They moved to Washington, D.C. last year.
My friend has a Ph.D. in physics.
{a} vs. {b} was a long match.
It was John F. Kennedy who said so.
The file is called report.v{n}.txt and it is large.
Visit www.example.org for more.
Mail me at me@example.org please.
What a day!
Why not?
The firm Smith & Co. was founded in 18{n}.
He asked, "Are you sure?"
She answered: "Of course."
That was the end of it.
In approx. {n} minutes we will land.
Capt. Cook sailed to Mt. Egmont.
The temperature was -{n}.5 degrees.
Rev. Green spoke for ca. {n} minutes.
Look at Sec. {n}.2 and Ch. 4.
The so-called "experts" were wrong.
'Come in,' said {b}.
How many are there: 3, 4 or {n}?
Col. Miller et al. found the same.
Sen. Warren and Rep. Diaz agreed.
We need 1,0{n}.75 litres.
The dept. of history is closed.
Once upon a time there was a king.
"It is late," he said, "and I am tired."
The shop opens at 9:{n}.
Nobody knew his name.
Lt. Kim has the keys.
{a} paid 5 dollars; {b} paid 6.
The answer is 42.
It was Vitamin C.
Please read the instructions carefully!
""",
    "de": """
{a} kam um 17.30 Uhr an.
Wir trafen {a} und {b} am Bahnhof.
Das kostet 3,50 Euro.
Er wohnt in der Hauptstr. {n} im 2. Stock.
Siehe Abb. {n} auf der nächsten Seite.
Am 3. Mai begann der Kurs.
Es gibt Äpfel, Birnen, Pflaumen usw.
Er ging nach Hause.
Sie sagte: „Ich komme um {n}.“
„Wo ist {a}?“, fragte sie.
„Halt!“, rief er.
Der Wert stieg um 2,{n} Prozent.
Viele Tiere, z. B. Hunde, schlafen lange.
Das heißt, d. h. genauer, niemand weiß es.
{b} schrieb den Brief am 12. Januar 1999.
Stimmt das?
Ja.
Nein!
Im 19. Jahrhundert war alles anders.
Das war im Jahr 19{n}.
Dann ... geschah nichts.
Die Sitzung (vgl. S. {n}) war kurz.
(Es regnete den ganzen Tag.)
Er ist ca. {n} cm groß.
Wir lasen Bd. {n} von {a}.
Das gilt u. a. auch hier.
Die Firma Meier & Co. wurde verkauft.
Es waren etwa 2 Mio. Menschen dort.
Kaiser Karl V. regierte lange.
Der 1. FC Köln gewann.
Die Datei heißt bericht.v{n}.txt und ist groß.
Mehr steht unter www.example.org im Netz.
Schreiben Sie an me@example.org bitte.
Was für ein Tag!
Warum nicht?
Er fragte: „Bist du sicher?“
Sie antwortete: „Natürlich.“
Das war das Ende.
In max. {n} Minuten landen wir.
Die Temperatur lag bei -{n},5 Grad.
Das sog. Expertenteam irrte sich.
»Herein«, sagte {b}.
Wie viele sind es: 3, 4 oder {n}?
Der Bus Nr. {n} fährt nicht.
Wir brauchen 1.0{n},75 Liter.
Die Abteilung ist bzw. war geschlossen.
Es war einmal ein König.
„Es ist spät“, sagte er, „und ich bin müde.“
Der Laden öffnet um 9 Uhr.
Niemand kannte seinen Namen.
{a} zahlte 5 Euro; {b} zahlte 6.
Die Antwort ist 42.
Bitte lesen Sie die Anleitung!
Sie wurde am 24. Dez. geboren.
Das Zimmer ist ggf. noch frei.
Inkl. Steuer sind es {n} Euro.
Der Vertrag gilt gem. § 5 Abs. 2 BGB.
Er kam i. d. R. zu spät.
Die Oper ist von J. S. Bach nicht geschrieben worden.
Heute ist der 1. April.
""",
    "fr": """
{a} est arrivé à 17 h 30.
Nous avons vu {a} et {b} à la gare.
Cela coûte 3,50 euros.
Il habite au n° {n} de l'av. Foch.
Voir fig. {n} à la page suivante.
Le cours a commencé le 3 mai.
Il y a des pommes, des poires, etc.
Il est rentré chez lui.
Elle a dit : « Je viens à {n} heures. »
« Où est {a} ? » demanda-t-elle.
« Arrête ! » cria-t-il.
La valeur a augmenté de 2,{n} %.
Certains animaux, p. ex. les chiens, dorment beaucoup.
La lettre de {b} date du 12 janvier 1999.
Est-ce vrai ?
Oui.
Non !
Au XIXe siècle, tout était différent.
C'était en 19{n}.
Puis... rien ne se passa.
La réunion (cf. p. {n}) fut courte.
(Il a plu toute la journée.)
Il mesure env. {n} cm.
Nous avons lu le vol. {n} de {a}.
La maison Dupont & Cie est vendue.
Le fichier s'appelle rapport.v{n}.txt et il est gros.
Plus d'infos sur www.example.org bientôt.
Écrivez à me@example.org svp.
Quelle journée !
Pourquoi pas ?
Il demanda : « Es-tu sûr ? »
Elle répondit : « Bien sûr. »
Ce fut la fin.
Dans max. {n} minutes nous atterrirons.
Il faisait -{n},5 degrés.
Les prétendus « experts » avaient tort.
« Entrez », dit {b}.
Combien sont-ils : 3, 4 ou {n} ?
Le bus no. {n} ne roule pas.
Il faut 1 0{n},75 litres.
Il était une fois un roi.
« Il est tard, dit-il, et je suis fatigué. »
Le magasin ouvre à 9 h.
Personne ne connaissait son nom.
{a} a payé 5 euros ; {b} en a payé 6.
La réponse est 42.
Lisez bien le mode d'emploi !
Elle est née le 24 déc. 1980.
L'art. {n} du code est clair.
Le chap. {n} est long.
J. S. Bach n'a pas écrit cet opéra.
Le tél. est coupé.
Mgr. Lefort et Me. Garnier sont venus.
Louis XIV mourut en 1715.
Mesdames, messieurs, bonsoir.
Le col. Fabien parla peu.
St. Malo est une ville.
Tout va bien.
Et toi ?
À demain !
""",
    "zh": """
{a}昨天来了。
我们在车站见到了{a}和{b}。
这本书三块五。
他住在公园路{n}号。
请看图{n}。
会议5月3日开始。
这里有苹果、梨、李子等等。
他回家了。
她说：“我{n}点来。”
“{a}在哪里？”她问。
“站住！”他喊道。
数值上升了2.{n}%。
有些动物（例如狗）睡得很多。
{b}在1999年写了这封信。
是真的吗？
是的。
不！
十九世纪一切都不同。
那是19{n}年。
然后……什么也没发生。
会议（见第{n}页）很短。
（整天下雨。）
他身高1.{n}米。
我们读了《红楼梦》第{n}回。
文件叫report.v{n}.txt，很大。
请访问www.example.org。
请写信到me@example.org。
多好的一天啊！
为什么不呢？
他问：“你确定吗？”
她回答：“当然。”
这就是结局。
还有{n}分钟就到了。
气温是零下{n}.5度。
所谓的“专家”错了。
“请进，”{b}说。
一共有几个：三个、四个还是{n}个？
{n}路公共汽车不开了。
我们需要1,0{n}.75升水。
从前有一个国王。
“很晚了，”他说，“我累了。”
商店9:{n}开门。
没有人知道他的名字。
{a}付了五块；{b}付了六块。
答案是42。
请仔细阅读说明！
她生于12月24日。
他说：“你好！”然后走了。
“太好了！”小红笑着说。
这是U.S.A.的产品。
你好吗？
好！
你去不去？！
他喜欢“足球”和“篮球”。
《三体》是刘慈欣写的。
明天见！
老师问：“谁知道？”大家都不说话。
价格是￥{n}.50元。
今天是星期一，天气很好。
他笑了……
""",
}


def sentences(language, count=300):
    """So many sentences of a language, the same ones always: a list of str."""
    rng = random.Random(language)
    names = _NAMES[language].split("|")
    templates = _TEMPLATES[language].strip().split("\n")
    found = []
    while len(found) < count:
        order = list(templates)
        rng.shuffle(order)
        for template in order[: count - len(found)]:
            first, second = rng.sample(names, 2)
            text = template.format(a=first, b=second, n=rng.randint(10, 98))
            found.append(text[0].upper() + text[1:])
    return found
