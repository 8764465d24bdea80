r"""Gold answers with answers that mean the same and answers that do not, by mathematics alone.

Each entry is ``(gold, right, wrong)``. Nothing here was taken from what the code returns.
"""

from __future__ import annotations

Case = tuple[str, list[str], list[str]]

INTEGERS_AND_DECIMALS: list[Case] = [
    ("42", ["42", "42.0", "+42", "042", "$42$", r"\(42\)", "42."], ["41", "-42", "4.2", "420"]),
    ("-7", ["-7", "-7.00", "−7", r"$-7$"], ["7", "-8"]),
    ("0", ["0", "0.0", "-0", r"\frac{0}{5}"], ["1", "0.1"]),
    ("1234", ["1,234", "1234.0", r"1{,}234"], ["1.234", "12,34", "123"]),
    ("1000000", ["1,000,000", r"10^6", r"1\times10^{6}"], ["1000001", "100000", r"10^5"]),
    ("8.8", ["8.80000000000000", r"\frac{44}{5}", "44/5", r"8\frac{4}{5}"], ["8.9", "8.08", "88"]),
    ("0.5", ["1/2", r"\frac12", ".5", "0.50", r"\dfrac{1}{2}", "½"], ["0.05", "2", "-0.5"]),
    ("3.14", ["3.14", "3.140", "314/100"], [r"\pi", "3.1416", "3.1"]),
    ("0.0000001", ["1e-7", r"10^{-7}", r"1\times 10^{-7}"], ["2e-7", "0", r"10^{-6}"]),
    ("2500", [r"2.5\times10^3", "2.5e3", "2,500"], [r"2.5\times10^2", "25"]),
]

FRACTIONS: list[Case] = [
    (
        r"\frac{1}{3}",
        ["1/3", "2/6", r"\frac{2}{6}", "0.333333", "0.33333333"],
        ["0.33", "0.3", "3"],
    ),
    (r"\frac{2}{3}", ["0.666667", "4/6", r"\tfrac23", r"\frac 2 3"], ["0.67", "0.66", "3/2"]),
    (r"-\frac{3}{4}", ["-0.75", "-3/4", r"\frac{-3}{4}", r"\frac{3}{-4}"], ["0.75", "-4/3"]),
    ("7/2", ["3.5", r"\frac{7}{2}", r"3\frac{1}{2}", "3 1/2", "3½"], ["31/2", "2/7", "3.2"]),
    (r"\frac{22}{7}", ["22/7", r"3\frac{1}{7}"], [r"\pi", "3.14"]),
    (r"\frac{10}{5}", ["2", "2.0"], ["5", r"\frac{5}{10}"]),
    (r"\frac{a}{2}", ["a/2", "0.5a", r"\frac{1}{2}a", r"a \div 2"], ["2a", "a", r"\frac{2}{a}"]),
    (r"\frac{1}{x+1}", ["1/(x+1)", r"(x+1)^{-1}", r"\frac{1}{1+x}"], ["1/x+1", r"\frac{1}{x-1}"]),
]

MIXED_NUMBERS: list[Case] = [
    ("2 1/4", ["2.25", "9/4", r"2\frac14", r"2\frac{1}{4}"], ["21/4", "2.14", "0.5"]),
    (r"5\frac{2}{3}", ["17/3", "5 2/3", r"\frac{17}{3}"], ["10/3", r"\frac{52}{3}", "5.23"]),
    (r"-1\frac{1}{2}", ["-1.5", "-3/2", "-1 1/2"], ["-0.5", "1.5"]),
    (r"1\frac{3}{8}", ["1.375", "11/8"], ["3/8", "13/8"]),
]

ROOTS_AND_POWERS: list[Case] = [
    (
        r"2\sqrt{3}",
        ["2√3", r"\sqrt{12}", r"2 \cdot \sqrt{3}", "2sqrt(3)", "2*sqrt(3)", r"\frac{6}{\sqrt{3}}"],
        ["2", r"\sqrt{6}", "3√2", r"\sqrt{3}", "6"],
    ),
    (
        r"\sqrt{2}",
        ["√2", r"2^{1/2}", "1.41421356", r"\frac{2}{\sqrt{2}}"],
        ["1.41", "2", r"\sqrt{3}"],
    ),
    (r"\frac{\sqrt{3}}{2}", ["√3/2", r"\sqrt{3}/2", r"\frac{\sqrt3}{2}"], [r"\sqrt{3/2}", "3/2"]),
    (r"5\sqrt{2}-1", [r"-1+5\sqrt{2}", r"\sqrt{50}-1"], [r"5\sqrt{2}+1", r"5\sqrt{1}"]),
    (r"\sqrt[3]{8}", ["2", r"8^{1/3}"], ["8/3", "512"]),
    (r"\sqrt[3]{2}", [r"2^{\frac13}", r"\sqrt[6]{4}"], [r"\sqrt{2}", r"3\sqrt{2}"]),
    ("2^{10}", ["1024", r"4^5"], ["20", "1000"]),
    (r"4\sqrt{5}+2", [r"2(1+2\sqrt{5})", r"2 + \sqrt{80}"], [r"6\sqrt{5}", r"4\sqrt{7}"]),
    (r"\frac{1+\sqrt{5}}{2}", [r"\frac{\sqrt{5}+1}{2}", "(1+√5)/2"], [r"\frac{1-\sqrt{5}}{2}"]),
    (r"3\sqrt{7}", ["√63", "3√7"], ["7√3", "21"]),
    (r"\frac{\sqrt{2}}{2}", [r"\frac{1}{\sqrt{2}}", r"\sqrt{\frac12}"], [r"\frac{\sqrt{2}}{4}"]),
]

PI_AND_E: list[Case] = [
    (r"\pi", ["π", "pi", r"\frac{2\pi}{2}", "3.14159265"], ["3.14", "22/7", r"2\pi"]),
    (r"9\pi", ["9π", "9pi", r"9 \cdot \pi", r"\pi 9", r"3^2\pi"], ["9", "28.27", r"18\pi"]),
    (r"\frac{3\pi}{4}", ["3π/4", r"\frac{3}{4}\pi", "0.75π", "135°"], [r"\frac{4\pi}{3}", "3/4"]),
    (r"4\pi + 8", [r"8+4\pi", r"4(\pi+2)"], [r"12\pi", r"4\pi-8"]),
    (r"e^2", [r"e \cdot e", r"\exp(2)"], ["2e", "7.39"]),
    (r"\ln 2", [r"\ln(2)", r"\frac12\ln 4"], [r"\log_{10} 2", "2"]),
    (r"\log_2 8", ["3", r"\frac{\ln 8}{\ln 2}"], ["4", "8"]),
]

DEGREES_AND_TRIGONOMETRY: list[Case] = [
    (
        "60°",
        ["60", "60.0°", r"60^\circ", r"60^{\circ}", "60 degrees", r"\frac{\pi}{3}"],
        ["61°", "30°"],
    ),
    (r"140^\circ", ["140°", "140", "140.0", "140 deg"], ["40°", "40"]),
    (r"\angle ABC = 60^\circ", ["60°", "60", r"\angle ABC = 60°"], ["120°"]),
    (
        "43",
        [
            r"m\angle 1=43",
            r"\angle 1 = 43°",
            "m∠1 = 43",
            r"\text{m}\angle ABC = 43^\circ",
            r"m \angle B=43",
        ],
        [r"m\angle 1=34", r"m\angle 1+m\angle 2=43", r"2m\angle 1=43", "1=43"],
    ),
    ("55", ["55°", r"55^{\circ}", r"$55^\circ$"], ["35°", "5.5"]),
    (r"\sin 30^\circ", ["0.5", r"\frac{1}{2}", r"\cos 60^\circ"], ["-0.988", r"\cos 30^\circ"]),
    (r"\tan 45^\circ", ["1", r"\tan(45°)"], ["0", "1.6198"]),
    (r"\cos 30°", [r"\frac{\sqrt{3}}{2}", r"\sin 60°"], ["0.1543", "1/2"]),
    (r"10\sin 40^\circ", [r"10 \cos 50^\circ", r"10\sin(40^\circ)"], [r"10\sin 50^\circ"]),
    (r"\frac{10}{\tan 30^\circ}", [r"10\sqrt{3}"], [r"\frac{10}{\sqrt{3}}"]),
    (r"\sin^2 x + \cos^2 x", ["1"], ["0", "2"]),
    (r"2\sin x\cos x", [r"\sin 2x", r"\sin(2x)"], [r"\cos 2x", r"2\sin x"]),
    ("22.5°", ["22.5", r"\frac{45}{2}°", r"\frac{\pi}{8}"], ["22", "45°"]),
    ("30", ["30 degrees", "30º"], ["60°"]),
]

PERCENT: list[Case] = [
    ("50%", ["50%", r"50\%", "50", "0.5", "1/2", "50 percent"], ["5%", "0.05", "55"]),
    (r"12.5\%", ["12.5%", "0.125", "1/8", "12.5"], ["125%", "1.25"]),
    ("0.25", ["25%", "1/4"], ["2.5%", "4"]),
    ("150%", ["1.5", "150", "3/2"], ["15%", "0.15"]),
    # The sign is a hundredth and no unit: 20% is 0.2. Only the gold's own sign may be left out.
    ("20", ["20", "2000%"], ["2%", "200%", "20%", r"20\%", "20 percent"]),
    ("4", ["400%", "4"], ["4%", r"4\%", "4 percent", "4.0%", r"\frac{8}{2}\%"]),
    ("4%", ["4", "4%", "0.04", "4 percent"], ["400%", "0.4%", "400"]),
    (r"\sqrt{2}", [r"100\sqrt{2}\%"], [r"\sqrt{2}\%", r"\sqrt{2} percent"]),
]

UNITS: list[Case] = [
    ("10千克", ["10", "10 kg", "10公斤"], ["10000", "10 g"]),
    ("10", ["10千米", "10千克", "10年", "10吨", "10毫升"], ["10千", "1万"]),
    ("10N", ["10", "10 N"], ["11", "10 kg"]),
    ("0.3A", ["0.3", "300 mA"], ["3", "0.3 V"]),
    ("5 MW", ["5", "5000 kW"], ["5 mW", "6"]),
    ("3 mPa", ["3"], ["3 MPa"]),
    ("2N", ["N+N"], ["3N", "N"]),
    ("5个", ["5", "5 个"], ["6", "6个"]),
    (
        "12 cm",
        ["12", "12cm", r"12\text{ cm}", r"12~\mathrm{cm}", "0.12 m", "120 mm"],
        ["12 m", "12 mm", "13 cm"],
    ),
    ("5 m", ["5", "5m", "5 meters", "500 cm", r"5\,\text{m}"], ["5 cm", "5 km", "50"]),
    (
        r"24 \text{ cm}^2",
        ["24", "24 cm²", r"24\,cm^2", "24 square centimeters", r"24\mathrm{cm}^2"],
        ["24 m^2", "24 cm", "42"],
    ),
    ("100 cm^3", ["100", "100 cubic centimeters", "100 cm³", "0.1 l"], ["100 cm^2", "100 m^3"]),
    ("3 hours", ["3", "3 h", "180 minutes", "3 hrs"], ["3 minutes", "30"]),
    ("60 km/h", ["60", "60 kilometers per hour", "60km/h"], ["60 m/s", "60 mph", "6"]),
    ("2 kg", ["2", "2000 g", "2 kilograms"], ["2 g", "2 lb"]),
    (r"\$5", ["5", "5 dollars", "$5", "$5.00"], ["5 cents", "50"]),
    ("7 apples", ["7", "7 apples", "7 Apples"], ["7 oranges", "8 apples"]),
    ("12", ["12 cm", r"12\text{ units}", "12 cm^2"], ["1.2 cm", "21 cm"]),
    (
        r"6\sqrt{3} \text{ cm}",
        [r"6\sqrt{3}", "6√3 cm", r"\sqrt{108}\text{ cm}"],
        [r"6\sqrt{3} \text{ m}", "6 cm"],
    ),
    (r"36\pi \text{ cm}^2", [r"36\pi", "36π cm²"], ["36 cm²", r"36\pi \text{ m}^2"]),
    ("90 seconds", ["90", "1.5 minutes", "90 s"], ["90 minutes", "9 s"]),
    ("1 foot", ["12 inches", "1 ft", "1"], ["12 feet", "1 inch"]),
    ("5 miles", ["5 mi", "5"], ["5 km"]),
    ("3 m/s", ["3", "3 meters per second"], ["3 m", "3 km/h"]),
]

ALGEBRA: list[Case] = [
    ("x^2-1", ["(x-1)(x+1)", "-1+x^2", r"x^{2} - 1", "x²-1", "x*x-1"], ["x^2+1", "(x-1)^2", "x^2"]),
    ("2x+3", ["3+2x", r"2\cdot x+3", "2(x+1.5)", "x+x+3"], ["2x-3", "3x+2", "2(x+3)", "5x"]),
    ("(a+b)^2", ["a^2+2ab+b^2", "(b+a)^2"], ["a^2+b^2", "(a-b)^2"]),
    ("3xy", ["3yx", r"3 \cdot x \cdot y", "xy+2xy"], ["3x+y", "3xyz", "xy"]),
    (r"\frac{x^2-1}{x-1}", ["x+1"], ["x-1", "x"]),
    ("y=2x+1", ["2x+1", "y = 1+2x"], ["y=2x-1", "x+1", "y=x+1"]),
    ("x=3", ["3", "x = 3", "x=3.0"], ["x=-3", "y=4", "-3"]),
    ("3", ["x=3", "a = 3", "n=3"], ["x=4"]),
    ("a+3z=0", ["3z+a=0", "a=-3z"], ["0", "a+3z", "a-3z=0"]),
    ("2x + 3y = 6", ["4x+6y=12", "3y+2x=6", "6=2x+3y"], ["2x+3y=5", "6", "2x-3y=6"]),
    ("x^2+y^2=25", ["y^2+x^2=25", "x^2+y^2-25=0"], ["x^2+y^2=5", "x^2-y^2=25", "25"]),
    (r"n(n+1)/2", [r"\frac{n^2+n}{2}", r"\frac{n(n+1)}{2}"], ["n(n-1)/2", "n^2"]),
    ("5!", ["120", r"5 \cdot 4!"], ["5", "24"]),
    (r"\binom{5}{2}", ["10", r"\frac{5!}{2!3!}"], ["20", "5/2"]),
    ("k+1", ["1+k"], ["m+1", "k", "k-1"]),
    (r"|x|", [r"\left|x\right|", r"|-x|"], ["x", "-x"]),
    (r"x_1 + x_2", ["x_2+x_1", "x_{1}+x_{2}"], ["x_1-x_2", "2x_1"]),
    (r"\frac{m}{n}", ["m/n", r"m \cdot n^{-1}"], ["n/m", "mn"]),
    (r"a^{-2}", [r"\frac{1}{a^2}", "1/a^2"], ["-a^2", "a^2", "-2a"]),
    (r"2^{n+1}", [r"2\cdot 2^n"], [r"2^n+1", r"4^n"]),
    (r"\alpha+\beta", [r"\beta+\alpha", "α+β"], [r"\alpha-\beta", r"\alpha"]),
]

SETS_TUPLES_INTERVALS: list[Case] = [
    (
        r"\{1,2,3\}",
        [r"\{3,2,1\}", "1,2,3", r"\left\{1, 2, 3\right\}", r"\{1,2,2,3\}"],
        [r"\{1,2\}", r"\{1,2,4\}", "6"],
    ),
    (
        "(1,2)",
        ["(1, 2)", "(1.0,2)", r"\left(1,2\right)", r"(\frac{2}{2}, 2)"],
        ["(2,1)", "(1,3)", "[1,2]", "3"],
    ),
    ("A(3,-4)", ["(3,-4)", "(3, −4)", "A(3, -4)"], ["(-4,3)", "(3,4)"]),
    (
        "[0,1)",
        ["[0, 1)", r"\left[0,1\right)", r"0 \le x < 1"],
        ["[0,1]", "(0,1)", "(0,1]", r"0<x\le 1"],
    ),
    (
        r"(-\infty, 3)",
        ["x<3", r"(-\infty,3)", r"3 > x", "(-∞,3)"],
        [r"(-\infty,3]", "x>3", r"x \le 3"],
    ),
    (
        r"x \ge 3",
        [r"[3,\infty)", r"x\geq 3", "x≥3", r"3\le x", r"[3, +\infty)"],
        ["x>3", r"x\le 3", r"(3,\infty)"],
    ),
    (r"-2<x<3", ["(-2,3)", r"x\in(-2,3)", r"-2 < x < 3"], ["[-2,3]", "(-3,2)", "(-2,4)"]),
    (r"(-\infty,0)\cup(1,\infty)", [r"(1,\infty)\cup(-\infty,0)"], [r"(-\infty,0)", "(0,1)"]),
    (r"\pm 2", ["2, -2", r"\{-2, 2\}", "±2"], ["2", "-2"]),
    ("x=1 or x=2", ["1, 2", "x=2 or x=1", r"\{1,2\}", r"x = 1, x = 2"], ["x=1", "x=1 or x=3", "3"]),
    ("1, 4", ["4, 1", r"1 \text{ and } 4", "1 and 4"], ["1", "14", "1, 5"]),
    (r"\emptyset", [r"\varnothing", "∅"], ["0", r"\{0\}"]),
    (
        r"(\frac{1}{2}, \sqrt{3})",
        ["(0.5, √3)", r"(1/2,\sqrt{3})"],
        [r"(\sqrt{3}, \frac12)", "(0.5, 3)"],
    ),
    ("(1,2,3)", ["(1, 2, 3)"], ["(3,2,1)", "(1,2)"]),
]

MATRICES_AND_VECTORS: list[Case] = [
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        [
            r"\begin{bmatrix}1&2\\3&4\end{bmatrix}",
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4.0 \end{pmatrix}",
        ],
        [r"\begin{pmatrix}1&3\\2&4\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"],
    ),
    (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        [r"\begin{bmatrix}1\\2\end{bmatrix}"],
        [r"\begin{pmatrix}2\\1\end{pmatrix}"],
    ),
]

RATIOS: list[Case] = [
    ("3:4", ["3:4", "6:8", "3 : 4", "3/4", r"\frac{3}{4}"], ["4:3", "3:5"]),
    ("1:2:3", ["2:4:6", "1 : 2 : 3"], ["1:3:2", "1:2"]),
    (r"1:\sqrt{3}", [r"\sqrt{3}:3", r"1 : √3"], [r"\sqrt{3}:1"]),
]

COMPLEX: list[Case] = [
    ("2+3i", ["3i+2", r"2 + 3i", r"2+3\sqrt{-1}", "(2+3i)"], ["2-3i", "5", "3+2i"]),
    ("i", [r"\sqrt{-1}", "(i)", r"e^{i\pi/2}"], ["-i", "1", "-1"]),
    (r"\sqrt{-1}", ["(i)", "i", "$i$"], ["-i", "1", "(1)", "j", "i, i"]),
    (r"\sqrt{-4}", ["2i", r"2\sqrt{-1}", "(2i)"], ["-2i", "2", "-2", "4i"]),
    (r"e^{i\pi}", ["-1", "i^2", r"\cos\pi"], ["1", "i", r"e^{\pi}"]),
    ("-1", [r"e^{i\pi}", "i^2", r"e^{-i\pi}"], [r"e^{i\pi/2}", "i", "-i"]),
    ("5", ["|3+4i|", "(2+i)(2-i)"], ["3+4i", "5i", "(2+i)^2"]),
    ("i^2R", ["Ri^2"], ["-R", "R"]),  # beside other letters i is a current, or an index
]

WORDS_AND_CHOICES: list[Case] = [
    ("yes", ["Yes", "YES", r"\text{yes}", "yes."], ["no", "y", "yes and no"]),
    ("True", ["true", r"\text{True}", "TRUE"], ["False", "t"]),
    ("Tuesday", ["tuesday", r"\text{Tuesday}", "**Tuesday**"], ["Thursday", "Tues"]),
    ("summer clothing", ["Summer clothing", "summer  clothing."], ["winter clothing", "clothing"]),
    ("no solution", [r"\text{no solution}", "No solution"], ["0", "one solution"]),
    (
        "B",
        ["B", "(B)", "B.", "b", r"\text{B}", "Option B", r"\textbf{(B)}"],
        ["A", "(C)", "AB", "D."],
    ),
    ("D", ["D", "(D)", "Choice D"], ["B", "E"]),
    (
        "A",
        ["A. 12 cm", "(A) 12 cm", "A) 12 cm", "A: yes", "Option A: red", "A - 12 cm"],
        ["B. 12 cm", "(C) 12 cm", "A. B", "A. 12 cm, B. 13 cm", "A = 5", "A(3,4)", "12 cm"],
    ),
    ("C", ["C. Point C", "c) 5"], ["C or D", "(C)(D)", "D: C", "C. 4 or D. 5"]),
    ("isosceles triangle", ["Isosceles Triangle"], ["equilateral triangle"]),
    ("rhombus", ["Rhombus", r"\mathrm{rhombus}"], ["square"]),
]

WRAPPERS: list[Case] = [
    (
        "15",
        ["The answer is 15", "Answer: 15", r"\[15\]", "$$15$$", r"\boxed{15}", "**15**"],
        ["The answer is 51"],
    ),
    ("$12$", ["12", r"\(12\)"], ["21"]),
    (r"\boxed{\frac{3}{5}}", ["3/5", "0.6"], ["5/3"]),
    ("<answer> 3 </answer>", ["3", "3.0"], ["4"]),
    ("x", ["x", "$x$"], ["y", "2x"]),
]

GEOMETRY_DATA: list[Case] = [
    ("9米", ["9", "9 m", "9米", "9 meters"], ["9 cm", "90"]),
    ("16π平方米", [r"16\pi", r"16\pi \text{ m}^2", "16π"], ["16", r"16\pi \text{ cm}^2"]),
    ("5cm^2^", ["5", "5 cm²", r"5\text{ cm}^2"], ["5 cm", "25"]),
    ("(√{3}+1)小时", [r"\sqrt{3}+1", "√3+1 hours"], [r"\sqrt{3}", r"\sqrt{4}"]),
    ("30${}^\\circ $", ["30°", "30", r"30^\circ"], ["60°"]),
    (r"\frac { \sqrt { 2 } } { 10 }", [r"\frac{\sqrt{2}}{10}", "√2/10"], [r"\frac{\sqrt{2}}{5}"]),
    (r"5 \sqrt { 2 }", [r"5\sqrt{2}", "5√2", r"\sqrt{50}"], ["10", r"2\sqrt{5}"]),
    (r"diameter $=10 \mathrm{~m}$", ["10", "10 m", "diameter = 10 m"], ["5", "10 cm"]),
    ("$y=21.61$", ["21.61", "y = 21.61"], ["21.6", "2161"]),
    ("254.4\n267.12", ["254.4, 267.12", "254.4 and 267.12"], ["254.4", "254.4, 267.1"]),
    (">-2", ["x>-2", "> -2"], ["-2", "x<-2"]),
    ("$ < $", ["<", r"$<$"], [">", "="]),
    ("2191.7 metres", ["2191.7", "2191.7 m", "2,191.7"], ["2191", "2191.7 km"]),
    (r"\frac{24}{5}cm", ["4.8", "4.8 cm", "48 mm"], ["4.8 m", "24"]),
    ("5m", ["5", "5.0", "5 m", "500 cm"], ["5 cm", "6", "5x"]),
    ("30√{3}m", [r"30\sqrt{3}", "30√3", r"30\sqrt{3}\text{ m}"], ["30", r"30\sqrt{3}\text{ cm}"]),
    ("2m+1", ["1+2m"], ["3", "2+1", "2m"]),
    ("60√{3}+1", [r"60\sqrt{3}+1", r"1+60\sqrt{3}"], [r"61\sqrt{3}", r"60\sqrt{3}"]),
]

EQUATIONS_AS_ANSWERS: list[Case] = [
    # An equation answers with a value where it names the value, and where it is true.
    (
        "4",
        ["4=4", "2+2=4", "x=2+2=4", "f(2)=4", "4=x", r"\frac{8}{2} = 4", "AB=CD=4"],
        [
            "5=4",
            "3=4",
            "x=5=4",
            "4=5",
            "2+1=4",
            "2x=4",
            "x^2=4",
            "5=x",
            r"\sqrt{x}=4",
            "2x=2+2=4",
            r"\frac{0}{0}=4",
            r"\frac{4}{0}=4",
        ],
    ),
    ("6", ["x=6", "S=2+4=6"], ["x+y=6", "x-y=6", "a+b+c=6", "xy=6", "x+1=6", "2x=6", "x/2=6"]),
    ("25", ["x=25"], ["x^2+y^2=25", "x^2=25", "5=25"]),
    ("2x", ["y=2x", "f(x)=2x", "2x"], ["x=2x", "2x=x", "x+0=2x"]),
    ("x+1", ["y=x+1", "g(x)=x+1"], ["x=x+1", "x = 1+x", "y+1=x+1"]),
    ("ab", ["S=ab"], ["a=ab", "b=ab", "a+b=ab"]),
    ("5", ["V = 5 V", "V=5V", "m = 5 m"], ["m = 6 m", "x=5x", "5x=x"]),
    ("1, 2", ["x=1, y=2", "a=2, b=1"], ["x+y=1, xy=2", "5=1, 2", "x=1, y=x+2", "x^2=1, 2x=2"]),
    ("3.33", ["10/3=3.33"], ["11/3=3.33", "10=3.33"]),
]

REPEATED_VALUES: list[Case] = [
    # A list has each of its values as often as it was written; a set in braces has them once.
    ("4", [r"\{4\}", "(4)"], ["4,4", "4, 4", "4 and 4", "4; 4", "x=4, x=4", "[4,4]", "(4,4)"]),
    ("2", ["2"], ["2,2", "2, 2, 2", "2, 2.0", r"2, \frac{4}{2}", r"\{2, 2\}", "2 or 2"]),
    ("4, 4", ["4,4", "4 and 4", "(4,4)", "4, 4.0"], ["4", "4, 4, 4", "4, 5", "8"]),
    ("1, 2", ["2, 1", "1 and 2"], ["1, 2, 2", "1, 1, 2", "2, 2", "1, 1"]),
    ("(1,1,-1)", ["1, 1, -1", "(1, 1, -1)"], ["1, -1", "(1,-1)", "(1,-1,1)", "1, 1"]),
]

ROWS_OF_NUMBERS: list[Case] = [
    # Spaces between numbers separate them; they neither multiply nor add.
    ("1 1 -1", ["1, 1, -1", "(1,1,-1)", "1  1  -1"], ["1", "10", "-1", "1, -1", "1 1 1", "1 1"]),
    ("2 3 5", ["2, 3, 5", r"2\ 3\ 5"], ["30", "10", "235", "2, 3", "2 3 6"]),
    ("3", ["3"], ["1 2", "3 1", "1 1 1", "3 3"]),
    ("15", ["15"], ["7 8", "3 5", "1 5", "15 1"]),
    ("0", ["0"], ["12 000", "5 0", "0 7"]),
    ("12000", ["12 000", r"12\,000", "12,000"], ["12 00", "12", "0", "120 000"]),
    ("1000000", ["1 000 000", r"1\,000\,000"], ["1 000", "1 0 0"]),
    ("4", ["5 - 1", "5 -1"], ["5 1", "5, -1"]),
]

NAMES: list[Case] = [
    # Letters alone are a name and keep their order; beside digits and operators they are factors.
    ("ab", ["ab", r"a \cdot b", "b*a", r"\text{ab}"], ["ba", "b a", r"\text{ba}", "a", "abb"]),
    ("AB", ["AB", r"\mathrm{AB}"], ["BA", "B A", "AC", "A"]),
    ("ABC", ["ABC"], ["CAB", "BCA", "ACB", "AB"]),
    ("cat", ["cat", "Cat"], ["act", "tac", "ca"]),
    (r"\angle ABC", [r"\angle CBA", "∠ABC"], [r"\angle BAC", r"\angle ACB", "∠BCA", "ABD"]),
    ("mn", ["mn", r"m \times n"], ["nm", "m+n"]),
    ("xy", ["yx", r"y \cdot x"], ["x", "x+y", "xyz"]),
    ("3ab", ["3ba", "ab+2ab", r"3 \cdot b \cdot a"], ["ab", "3a+b", "3abc"]),
]

CASE_OF_LETTERS: list[Case] = [
    # R and r are two quantities; a word is the same in capitals.
    (r"\pi(R^2-r^2)", [r"\pi R^2-\pi r^2", r"\pi(R-r)(R+r)"], ["0", r"\pi(r^2-R^2)"]),
    (r"\frac{R}{r}", ["R/r"], ["1", "r/R"]),
    (r"\frac{mv}{M+m}", [r"\frac{vm}{m+M}"], [r"\frac{v}{2}"]),
    ("Aa", ["Aa"], ["AA", "aa"]),
    ("Mg", ["Mg"], ["mg"]),
    ("R", ["R"], ["r"]),
]

NUMBER_BASES: list[Case] = [
    # The base of an answer counts; an answer may leave out the one that the gold names.
    ("7", ["7", "7_{10}"], ["7_8", "7_{8}", "x=7_8", "7_8 cm", "7.0_9"]),
    ("12", ["12", "12_{10}"], ["12_8", "12_{16}", "12_{3}"]),
    ("12_8", ["12_{8}", "12"], ["12_9", "12_{7}", "10", "13_8"]),
    ("1011_2", ["1011_{2}", "1011"], ["1011_3", "11", "1010_2"]),
    (r"\log_2 8", ["3", r"\log_3 27"], [r"\log_3 8"]),
    ("x_1+7", ["7+x_1"], ["x_1+7_8", "x_2+7"]),
]

DATES: list[Case] = [
    # A date is not the difference of its numbers.
    ("2013", ["2013", "2019-6"], ["2019-05-01", "2019/05/01", "2019-5-1", "2019.05.01"]),
    ("2014", ["2014"], ["2019-05", "2019-04-01"]),
    ("-2012", ["-2012"], ["2-5-2009", "05-01-2016"]),
    ("2019-05-01", ["2019-05-01", "2019/5/1", "2019-5-1"], ["2013", "2019-05-02", "2018-05-01"]),
    ("05/01/2019", ["05/01/2019", "5/1/2019"], ["06/01/2019", "5/2019", "1/2019"]),
    ("2", ["5-3", "2000-1998"], ["5-4"]),
]

MODULO: list[Case] = [
    ("1", [r"7 \mod 3", r"7 \bmod 3", "7 mod 3", r"7 \pmod 3"], [r"7 \mod 4", r"8 \bmod 3"]),
    (r"7 \mod 3", ["1", "1.0", r"10 \bmod 3"], ["7", "3", "2", "21"]),
    ("2", [r"2^{10} \mod 7", r"17 \bmod 5"], [r"2^{10} \mod 9", r"7 \mod 3"]),
    ("1", [r"7 \mod 3 = 1", r"x = 7 \bmod 3"], [r"7 \mod 4 = 1", r"x \mod 3 = 1", "1 mod 0"]),
    (r"-1 \mod 5", ["4"], ["-1", "1", "5"]),
]

SENTENCES: list[Case] = [
    # A plain sentence states its only number; a hedge or a second number states none.
    (
        "3",
        [
            "There are 3 cubes",
            "There are 3 red cubes on the table.",
            "There are exactly 3 cubes left",
            "It has 3 sides",
            "The number of cubes is 3.",
            "I counted 3 cubes",
            "There are about 3 cubes",
        ],
        [
            "There are 4 cubes",
            "There are not 3 cubes",
            "There aren't 3 cubes",
            "There are 3 or 4 cubes",
            "There are more than 3 cubes",
            "There are 3 cubes and 4 balls",
            "There are 3 cubes, 4 balls",
            "There are 3 dozen cubes",
            "There are 3 times as many cubes",
            "There are 3x cubes",
            "The cube 3",
        ],
    ),
    ("7 apples", ["There are 7 green apples"], ["There are 7 green oranges", "There are 8 apples"]),
    (
        "12 cm",
        ["The length is 12 cm.", "It is 12 cm long", "The length is 120 mm"],
        ["The length is 12 m", "The length is 12 in", "The length is under 12 cm"],
    ),
    (r"5\sqrt{2}", [r"The length is $5\sqrt{2}$."], [r"The length is $5\sqrt{3}$."]),
]

PRINTED_DOUBLES: list[Case] = [
    # What Python prints for the double nearest to the gold, and its neighbours by rounding.
    (
        r"5\sqrt{2}",
        ["7.0710678118654755", "7.0710678118654746", "7.07106781186547"],
        ["7.0710678118655755", "7.0710678118644755", "7.0711"],
    ),
    (r"\sqrt{3}", ["1.7320508075688772"], ["1.7320508075688872", "1.7320508075678772"]),
    (r"\frac{1}{3}", ["0.33333333333333331", "0.3333333333333333"], ["0.33333333333334331"]),
    (r"10\pi", ["31.41592653589793"], ["31.41592653589893"]),
    (r"\frac{2}{7}", ["0.2857142857142857", "0.28571428571428570"], ["0.2857142857142957"]),
    ("5", ["4.999999999999999999", "5.0000000000000001"], ["4.9999", "5.00000000000001001"]),
]

TRAPS: list[Case] = [
    (
        "2",
        [r"\frac{4}{2}", r"\sqrt{4}"],
        [r"2\sqrt{3}", "2x", "2 or 3", "not 2", "1, 2", "2+i", "2/3"],
    ),
    ("6", ["2*3", r"2 \times 3"], ["2, 3", "6, 7", "between 5 and 6", r"6\pi", "6^2"]),
    ("0", [r"\ln 1", "3-3"], ["", "nan", r"\infty", "none", "1e-3"]),
    (r"\sqrt{5}", [r"5^{0.5}"], ["5", r"\sqrt{5}i", r"-\sqrt{5}", r"\pm\sqrt{5}"]),
    ("x+1", ["1+x"], ["x", "1", "x+1=0", "(x,1)"]),
    ("xy=6", ["yx=6"], ["6", "x=6", "xy"]),
    ("AB=5", ["5", "AB = 5.0"], ["6", "AB=6"]),
    # The grammar multiplies letters, and times 0 they vanish.
    ("0", ["0 cm", "x = 0"], ["not 0", "0 is wrong", "at least 0", "banana 0", "if 0", "up to 0"]),
    ("-4.4", ["0.0-4.4"], ["not 0.0-4.4", "two 0.0-4.4"]),
    ("≈ 3.14", ["3.14"], ["not ≈ 3.14", "minus ≈ 3.14", "never ≈ 3.14"]),
    ("x=1, y=2", [], [r"\lg x=1, y=2", "not x=1, y=2", "x+1=1, y=2"]),
    ("x_1=1, x_2=3", [], [r"\lg x_1=1, x_2=3"]),
    ("True", ["true."], ["> True", "True%", "≠ True", "not True"]),
    ("7", ["7, which is the sum of 3 and 4"], ["7, which is wrong", "7; note that this is wrong"]),
]

NUMBER_WORDS: list[Case] = [
    # A number in words is the number; a word that scales or qualifies it makes another.
    (
        "3",
        ["three", "Three", "THREE", "three.", "three apples", "\\text{three}"],
        [
            "third",
            "thirty",
            "thirteen",
            "three-fifths",
            "three or four",
            "not three",
            "three hundred",
            "three and a half",
            "threefold",
            "at least three",
            "thrice",
        ],
    ),
    (
        "45",
        ["forty-five", "forty five", "Forty-Five degrees", "四十五"],
        ["fifty-four", "forty-fifth", "forty", "four-five", "四十", "四十六"],
    ),
    (
        "105",
        ["one hundred five", "one hundred and five", "a hundred and five", "一百零五"],
        ["one hundred fifty", "one hundred", "a hundred", "一百五"],
    ),
    (
        "1/2",
        ["half", "one half", "a half", "one-half", "二分之一"],
        ["two halves", "half of 2", "one third", "second", "half 5"],
    ),
    (
        "2.5",
        ["two and a half", "2 and a half", "two point five", "5 halves"],
        ["two and a quarter", "two point fifty", "half"],
    ),
    (
        "2/3",
        ["two thirds", "two-thirds", "三分之二"],
        ["two", "three halves", "三分之一", "二分之三"],
    ),
    (
        "1250000",
        ["1.25 million", "1,250 thousand", "one million two hundred fifty thousand", "125万"],
        ["1.25", "1.25 billion", "1.25 thousand", "12.5万"],
    ),
    (
        "-2500000",
        ["-2.5 million", "- 2.5 million", "$-2.5$ million", "−2.5 million", "minus 2.5 million"],
        ["2.5 million", "-2.5", "-2.5 billion", "5 - 2.5 million", "0 to -2.5 million"],
    ),
    (
        "1.25 million",
        ["1250000", "1,250,000", "1.25 \\times 10^6", "1.25\\text{ million}"],
        ["1.25", "1.25 billion", "1250", "million"],
    ),
    (
        "5",
        [],
        [
            "5 million",
            "5 thousand",
            "5 hundred",
            "5 dozen",
            "5 billion",
            "5 half",
            "5 squared",
            "5 cubed",
            "five million",
            "5万",
            "5千",
            "5 tenths",
            "5 percent",
            "five percent",
            "5 more",
            "-5",
            "minus 5",
            "negative five",
            "±5",
            "5+",
            "> 5",
            "\\ge 5",
            "at least 5",
            "up to 5",
            "not 5",
            "5 is wrong",
            "5 is not correct",
            "5 and a half",
            "5 or 6",
            "5!",
            "x>5",
            "5 is incorrect",
            "≠5",
            "\\neq 5",
            "5 too many",
            "5 max",
            "5 (or 6)",
            "5 (not 6, but more)",
            "5 because the answer is 6",
            "5, wait, 6",
            "5 since 1990",
            "anything but 5",
            "5 minus 2",
            "5 plus",
            "5 with an error of 1",
        ],
    ),
    ("$5", ["5 dollars", "five dollars", "$5.00"], ["5 million dollars", "$5 million", "5 euros"]),
    ("12 cm", ["twelve centimeters", "12 centimeters", "十二厘米"], ["twelve meters", "12 km"]),
    (
        "-5",
        ["minus 5", "negative five", "negative 5", "负五", "-5.0"],
        ["5", "minus five hundred", "minus 5 percent", "5 minus"],
    ),
    ("Seven Samurai", ["seven samurai"], ["7", "Six Samurai"]),
    ("One Direction", ["one direction"], ["1", "direction"]),
    ("three apples", ["3 apples", "3", "three"], ["3 oranges", "four apples"]),
    ("0", ["zero", "零"], ["none", "ten"]),
    ("10", ["ten", "十"], ["tenth", "twenty", "tension", "often"]),
    ("12", ["a dozen", "1 dozen", "十二"], ["two dozen"]),
    ("ten", ["10", "Ten"], ["tent", "100"]),
    ("5 km", ["5000 m", "five kilometers", "5"], ["5 m", "5 cm"]),
    ("5 m", ["5 meters", "5"], ["5 km"]),
]


ROUNDINGS: list[Case] = [
    # A rounding is right where the gold is what it says.
    (
        "3.14",
        [
            "≈3.14",
            "\\approx 3.14",
            "about 3.14",
            "approximately 3.14",
            "x \\approx 3.14",
            "~3.14",
            "roughly 3.14",
            "\\approx3.140",
        ],
        ["≈3.1", "about 3", "≈ 3.1416", "about pi", "approximately 3.14 million"],
    ),
    ("\\pi", ["≈ 3.14159265"], ["≈ 3.14", "about 3"]),
    ("≈ 7.07", ["7.07", "\\approx 7.07", "about 7.07"], ["7", "7.1", "5\\sqrt{2}"]),
    ("about 12 cm", ["12 cm", "12", "about 12 cm", "120 mm"], ["12 m", "13 cm", "about 120 cm"]),
    (
        "\\sqrt{10}",
        ["\\sqrt{10} \\approx 3.16", "\\sqrt{10}≈3.162"],
        [
            "\\approx 3.16",
            "3.16",
            "\\sqrt{11} \\approx 3.16",
            "\\sqrt{10} \\approx 4",
            "\\sqrt{10}\\approx 3.16 \\approx 5",
        ],
    ),
    ("3.16", ["\\sqrt{10}\\approx 3.16"], ["\\sqrt{10} \\approx 3.2", "\\sqrt{9} \\approx 3.16"]),
]


RECURRING_DECIMALS: list[Case] = [
    (
        "1/3",
        [
            "0.\\overline{3}",
            "0.\\overline{33}",
            "0.\\dot{3}",
            "0.\\bar{3}",
            ".\\overline{3}",
            "0.(3)",
            "0.3\\overline{3}",
        ],
        [
            "0.\\overline{34}",
            "0.\\overline{6}",
            "3.\\overline{3}",
            "0.0\\overline{3}",
            "0.3\\overline{0}",
        ],
    ),
    (
        "0.1\\overline{6}",
        ["1/6", "\\frac{1}{6}", "0.16\\overline{6}"],
        ["0.16", "0.1", "0.\\overline{16}", "1/16"],
    ),
    ("1", ["0.\\overline{9}"], ["0.9"]),
]


UNITS_ON_RADICALS: list[Case] = [
    (
        "2\\sqrt{10}",
        [
            "2\\sqrt{10}\\text{ units}",
            "2\\sqrt{10} units",
            "2√10 units",
            "\\sqrt{40}\\text{ units}",
            "2\\sqrt{10}\\,\\mathrm{units}",
            "2\\sqrt{10} blocks",
        ],
        [
            "10\\sqrt{2}\\text{ units}",
            "2 units",
            "2\\sqrt{10} million",
            "2\\sqrt{10} squared",
            "2\\sqrt{10} percent",
            "2\\sqrt{10}x",
            "2\\sqrt{10} \\text{ or less}",
        ],
    ),
    (
        "2\\sqrt{10}\\text{ units}",
        ["2\\sqrt{10}", "6.3245553203"],
        ["2\\sqrt{10} \\text{ square units}", "10"],
    ),
    (
        "6 \\text{ square units}",
        ["6", "6 square units", "6 \\text{ units}^2", "6 units^2"],
        ["6 units", "6 cubic units"],
    ),
]


SOLUTION_SETS: list[Case] = [
    # Bounds joined by a word, chains, rules and unions of intervals.
    (
        "(-\\infty,-2]\\cup[3,\\infty)",
        [
            "x\\le -2 \\text{ or } x\\ge 3",
            "x ≤ -2 or x ≥ 3",
            "x\\ge3 or x\\le-2",
            "x \\in (-\\infty,-2] \\cup [3,\\infty)",
            "\\{x \\mid x\\le -2 \\text{ or } x\\ge 3\\}",
            "x\\le -2 \\lor x\\ge 3",
            "-2 ≥ x or 3 ≤ x",
            "[3,\\infty)\\cup(-\\infty,-2]",
        ],
        [
            "x<-2 or x\\ge 3",
            "x\\le -2 and x\\ge 3",
            "x\\le -2",
            "x \\le -2 or y\\ge 3",
            "x\\ge -2 or x\\le 3",
            "-2\\le x\\le 3",
            "[-2,3]",
            "\\{x | x \\le -2\\}",
            "x\\le -2 or x = 3",
            "not x\\le -2 or x\\ge 3",
        ],
    ),
    (
        "x<1 or x>5",
        ["(-\\infty,1)\\cup(5,\\infty)", "x>5 or x<1"],
        ["1<x<5", "(1,5)", "x<1", "y<1 or y>5", "x>5", "x>1 or x<5"],
    ),
    (
        "1<x<3",
        ["3>x>1", "(1,3)", "x\\in(1,3)", "\\{x | 1<x<3\\}", "1 < x \\text{ and } x < 3"],
        ["3>x\\ge 1", "[1,3]", "3<x<1", "1>x>3", "x<3", "1<y<3", "1<x<4", "\\{1,3\\}", "1, 3"],
    ),
    (
        "x>2",
        [
            "\\{x \\mid x>2\\}",
            "\\{x: x>2\\}",
            "\\{x \\in \\mathbb{R} \\mid x > 2\\}",
            "(2,\\infty)",
            "2<x",
            "\\left\\{ x \\,\\middle|\\, x > 2 \\right\\}",
        ],
        [
            "\\{x \\mid x\\ge2\\}",
            "\\{x\\in\\mathbb{Z} \\mid x>2\\}",
            "\\{x \\mid x<2\\}",
            "\\{2\\}",
            "\\{x\\in\\mathbb{N} : x>2\\}",
        ],
    ),
    (
        "x \\ne 2",
        ["(-\\infty,2)\\cup(2,\\infty)", "\\{x \\mid x \\neq 2\\}", "x≠2"],
        ["x=2", "2", "\\{2\\}", "x \\ne 3"],
    ),
    (
        "\\{1,2\\}",
        ["x=1 or x=2", "x_1=1, x_2=2", "\\{x | x=1 \\text{ or } x=2\\}"],
        ["x=1", "(1,3)"],
    ),
    ("\\mathbb{R}", ["(-\\infty,\\infty)", "\\mathbb{R}"], ["\\emptyset", "x>0"]),
    ("x=3", ["3", "x = 3 because 2x = 6"], ["x=-3", "x>3", "x≠3"]),
]


DECADIC_LOGARITHMS: list[Case] = [
    ("\\lg 5", ["\\log_{10} 5", "\\lg(5)", "1-\\lg 2"], ["\\ln 5", "\\log_2 5", "5", "lg 50"]),
    ("2", ["\\lg 100", "\\lg(100)", "\\lg 10^2"], ["\\lg 10", "\\ln 100", "\\lg 1000"]),
]


NAMED_VALUES: list[Case] = [
    # The values of a system belong to their names; roots are a list.
    (
        "x=1, y=2",
        [
            "y=2, x=1",
            "x=1 and y=2",
            "x = 1; y = 2",
            "\\begin{cases} x=1 \\\\ y=2 \\end{cases}",
            "\\left\\{\\begin{array}{l}x=1\\\\y=2\\end{array}\\right.",
            "(1,2)",
            "\\begin{cases}x=1,\\\\y=2\\end{cases}",
            "\\begin{aligned}x&=1\\\\y&=2\\end{aligned}",
            "(x,y)=(1,2)",
        ],
        [
            "x=2, y=1",
            "(2,1)",
            "x=1",
            "x=1, y=3",
            "2, 1",
            "x=1, z=2",
            "a=1, b=2",
            "\\begin{cases}x=2\\\\y=1\\end{cases}",
            "x=1, y=2, z=3",
            "(y,x)=(1,2)",
        ],
    ),
    (
        "(1,2)",
        [
            "x=1, y=2",
            "\\begin{cases}x=1\\\\y=2\\end{cases}",
            "\\langle 1,2\\rangle",
            "(x,y)=(1,2)",
            "\\vec{v}=(1,2)",
        ],
        ["x=2, y=1", "y=1, x=2", "\\langle 2,1 \\rangle"],
    ),
    (
        "x_1=2, x_2=-3",
        [
            "x_1=-3, x_2=2",
            "x=2 or x=-3",
            "2, -3",
            "x=2, x=-3",
            "x_{1}=2, x_{2}=-3",
            "2 and -3",
            "\\{2,-3\\}",
        ],
        ["x_1=2, x_2=3", "2", "x_1=2", "x_1=2, y_1=-3", "-2, 3", "x_1 = 2, x_2=-3, x_3=1"],
    ),
    ("1, 4", ["x_1=1, x_2=4", "x_{1}=4,x_{2}=1", "x=1 or x=4"], ["x_1=1", "x_1=1, x_2=14"]),
    (
        "\\frac{x-1}{2}",
        [
            "f^{-1}(x)=\\frac{x-1}{2}",
            "f^{-1}(x) = (x-1)/2",
            "f^{-1}(x)=\\frac12 x-\\frac12",
            "y=\\frac{x-1}{2}",
        ],
        ["f^{-1}(x)=\\frac{x+1}{2}", "f^{-1}(x)=\\frac{2}{x-1}", "f^{-1}(x)=2x+1"],
    ),
    ("2x+1", ["y = 2x+1"], ["x minus 1", "two x plus one hundred"]),
]


VECTORS: list[Case] = [
    (
        "(3,-4)",
        [
            "\\overrightarrow{AB}=(3,-4)",
            "\\langle 3,-4\\rangle",
            "\\vec{AB}=\\langle 3, -4 \\rangle",
            "<3,-4>",
            "\\left\\langle 3,-4\\right\\rangle",
            "⟨3,-4⟩",
            "\\overrightarrow{AB} = \\left(3, -4\\right)",
        ],
        ["\\overrightarrow{AB}=(-3,4)", "\\langle -4,3\\rangle", "\\langle 3,4\\rangle", "5"],
    ),
    ("\\langle 1,2,3\\rangle", ["(1,2,3)"], ["(3,2,1)", "\\{1,2\\}"]),
]


AROUND_AN_ANSWER: list[Case] = [
    # What wraps, introduces or explains an answer; a correction takes it back.
    (
        "7",
        [
            "**Answer:** 7",
            "**Answer**: 7",
            "**Final Answer:** 7",
            "Answer: **7**",
            "```\n7\n```",
            "```7```",
            "`7`",
            "**The answer is 7.**",
            "Final answer: 7",
            "# Answer\n7",
            "The final answer is $7$.",
            "The answer is: 7",
            "So, the answer is 7.",
            "Therefore, the answer is 7",
            "Answer = 7",
            "答案:7",
            "答案为 7",
            "答案是7。",
            "所以答案是7",
            "**答案**:7",
            "7 because 3+4=7",
            "7, because 3+4=7.",
            "7 (because 3 + 4 = 7)",
            "7. Explanation: 3 + 4 = 7.",
            "7\n\nExplanation: we add 3 and 4.",
            "7\nReason: 3+4",
            "7 (the sum of three and four)",
            "7, since 3 plus 4 makes 7",
            "7 — because that is the sum",
        ],
        [
            "**Answer:** 8",
            "Answer: 7 or 8",
            "```\n7\n8\n```",
            "The answer is not 7",
            "7 because the answer is 8",
            "7\n\nActually, 8",
            "7. Wait, 8",
            "8 because 7 is too small",
            "答案不是7",
            "7 (or 8)",
            "7 because I guess, but it could be 8",
            "8\nExplanation: 7+1",
            "Answer: 70",
            "7 / 8",
            "7\n8",
            "Step 7: compute",
            "7 because 7; final answer 9",
        ],
    ),
    (
        "120°",
        [
            "答案是120°",
            "120度",
            "答案为120度",
            "一百二十度",
            "120 degrees",
            "one hundred twenty degrees",
        ],
        ["答案是60°", "十二度", "120 rad"],
    ),
    ("yes", ["Yes", "yes, because it is"], ["no", "not yes", "yes and no"]),
    ("no", ["No", "No, since they differ"], ["yes", "not sure"]),
    ("4:3", ["4:3", "4 : 3"], ["3:4"]),
]


LETTERS: list[Case] = [
    (
        "C",
        [
            "选C",
            "The correct answer is C.",
            "The correct answer is (C)",
            "Option C is correct",
            "C is correct",
            "C is the correct answer",
            "C because A and B are false",
            "答案:C",
            "故选C。",
            "正确选项是C",
            "选项C",
            "(C)",
            "C, since it is the largest",
            "Answer: C",
            "The answer is C",
            "The correct option is C",
            "**C**",
        ],
        [
            "选D",
            "不选C",
            "not C",
            "C is wrong",
            "The correct answer is not C",
            "C or D",
            "B is correct",
            "C is not correct",
            "anything but C",
            "C is incorrect",
            "排除C",
            "Option C is wrong",
            "C because D is the answer",
            "CD",
            "C is correct, D is correct",
        ],
    ),
    (
        "A,B,C",
        ["ABC", "A, B, C", "A, B and C", "CBA", "(A)(B)(C)", "A B C", "(A), (B), (C)", "A、B、C"],
        ["AB", "ABCD", "A,B", "ABD", "AAB", "A,B,C,D", "ABCC", "A or B or C", "not ABC"],
    ),
]

MORE_SPELLINGS: list[Case] = [
    # Other spellings of the kinds above, from number words to letters.
    (
        "21",
        ["twenty-one", "Twenty One", "二十一", "twenty-one.", "The answer is twenty-one"],
        ["twelve"],
    ),
    ("1000", ["one thousand", "a thousand", "1 thousand", "一千"], ["ten thousand", "1 million"]),
    (
        "2,400,000",
        ["2.4 million", "2.4 million people", "$2.4$ million", "240万"],
        ["2.4", "24 million"],
    ),
    ("0.75", ["three quarters", "three fourths", "75%", "四分之三"], ["three"]),
    ("-2", ["minus two", "negative two"], ["two"]),
    ("3.5", ["three point five", "three and a half", "3 and a half", "3 and one half"], ["three"]),
    ("3.14", ["\\approx 3.14", "≈ 3.14", "$\\approx 3.14$", "approx. 3.14", "≈3.14 cm"], ["≈ 4"]),
    (
        "12",
        [
            "about 12",
            "around 12",
            "approximately 12",
            "≈12",
            "~12",
            "about twelve",
            "$\\approx 12$",
            "约12",
        ],
        ["about 12.4", "nearly 12", "almost 12", "over 12", "about 120"],
    ),
    (
        "2/9",
        ["0.\\overline{2}", "0.\\dot{2}", "$0.\\overline{2}$", "0.222222\\overline{2}"],
        ["0.2", "0.22"],
    ),
    ("1.\\overline{3}", ["4/3", "1\\frac{1}{3}", "1.333333"], ["1.3", "13/9"]),
    (
        "4\\sqrt{3}",
        [
            "4\\sqrt{3}\\text{ square units}",
            "4\\sqrt{3} \\text{ units}^2",
            "4\\sqrt{3} cm^2",
            "4√3 square units",
            "4\\sqrt{3}\\text{ sq. units}",
            "4\\sqrt{3}~\\text{units}",
            "4 \\sqrt{3} \\mathrm{~cm}",
        ],
        ["3\\sqrt{4} units"],
    ),
    (
        "\\frac{\\sqrt{3}}{2}",
        ["\\frac{\\sqrt{3}}{2} units", "\\frac{\\sqrt{3}}{2} \\text{ meters}"],
        ["\\frac{\\sqrt{2}}{3} units"],
    ),
    (
        "(-\\infty,1)\\cup(3,+\\infty)",
        [
            "x\\in(-\\infty,1)\\cup(3,+\\infty)",
            "x \\in (-\\infty, 1) \\cup (3, \\infty)",
            "x<1 or x>3",
            "x<1或x>3",
            "$x<1$ or $x>3$",
            "x < 1 \\text{ or } x > 3",
            "\\{x|x<1或x>3\\}",
            "\\{x \\mid x<1 \\text{ or } x>3\\}",
            "x<1, or x>3",
            "x>3 \\text{ or } x<1",
            "(-∞,1)∪(3,+∞)",
            "x ∈ (−∞, 1) ∪ (3, ∞)",
        ],
        ["x<1 or x≥3", "(1,3)", "1<x<3", "x \\in (-\\infty,1]\\cup(3,\\infty)"],
    ),
    (
        "x\\le-2 \\text{ or } x\\ge3",
        ["x≤-2 or x≥3", "(-\\infty,-2]\\cup[3,+\\infty)", "x \\geq 3 or x \\leq -2"],
        ["x≤-2", "x≤-2 or x≥-3", "x≤-2, x≥4"],
    ),
    (
        "\\{x|-1<x<2\\}",
        [
            "(-1,2)",
            "-1<x<2",
            "2>x>-1",
            "\\{x \\mid -1 < x < 2\\}",
            "\\left\\{x \\mid -1<x<2\\right\\}",
            "x\\in(-1,2)",
        ],
        ["[-1,2]", "-1<x\\le 2", "\\{-1,2\\}"],
    ),
    ("{x | x > 0}", ["x>0", "(0,\\infty)", "\\{x: x > 0\\}"], ["x<0", "[0,\\infty)"]),
    ("3>x>1", ["1<x<3", "(1,3)"], ["1>x>3", "(3,1)"]),
    (
        "\\lg 3",
        ["\\log_{10}3", "lg 3", "\\lg{3}", "\\frac{\\ln 3}{\\ln 10}"],
        ["\\ln 3", "3", "\\log_2 3"],
    ),
    ("-2", ["\\lg 0.01", "\\lg \\frac{1}{100}", "-\\lg 100"], ["\\lg 0.1"]),
    (
        "\\begin{cases} x=2 \\\\ y=-1 \\end{cases}",
        [
            "x=2, y=-1",
            "x=2,y=-1",
            "y=-1, x=2",
            "x=2 and y=-1",
            "(2,-1)",
            "x = 2; y = -1",
            "x=2\ny=-1",
            "x=2 \\\\ y=-1",
            "\\left\\{\\begin{aligned} x&=2\\\\ y&=-1\\end{aligned}\\right.",
        ],
        ["x=-1, y=2", "(-1,2)", "x=2", "x=2,y=1"],
    ),
    (
        "x=1+\\sqrt{3} or x=1-\\sqrt{3}",
        [
            "x_1=1+\\sqrt{3}, x_2=1-\\sqrt{3}",
            "x=1\\pm\\sqrt{3}",
            "1\\pm\\sqrt{3}",
            "x_{1,2}=1\\pm\\sqrt{3}",
            "x₁=1+√3, x₂=1-√3",
            "x_1=1-\\sqrt3,\\ x_2=1+\\sqrt3",
        ],
        ["x=1+\\sqrt{3}", "x_1=1+\\sqrt{2},x_2=1-\\sqrt{2}"],
    ),
    (
        "x_1=-1, x_2=3",
        [
            "-1, 3",
            "x=-1 or x=3",
            "x=3 or x=-1",
            "x_1 = 3, x_2 = -1",
            "x = -1, 3",
            "x_1=-1 \\text{ and } x_2=3",
            "-1 and 3",
            "x₁ = -1, x₂ = 3",
        ],
        ["1, -3", "x=-1", "3"],
    ),
    (
        "\\sqrt{x-1}",
        [
            "f^{-1}(x)=\\sqrt{x-1}",
            "f^{-1}(x) = \\sqrt{x - 1}",
            "$f^{-1}(x)=\\sqrt{x-1}$",
            "y=\\sqrt{x-1}",
            "g^{-1}(x)=\\sqrt{x-1}",
        ],
        ["f^{-1}(x)=\\sqrt{x+1}", "f^{-1}(x)=x-1"],
    ),
    (
        "f^{-1}(x)=\\frac{x+3}{2}",
        ["\\frac{x+3}{2}", "f^{-1}(x)=\\frac{1}{2}x+\\frac32", "y=\\frac{x+3}{2}", "(x+3)/2"],
        ["\\frac{x-3}{2}", "f^{-1}(x)=2x-3"],
    ),
    (
        "(2,5)",
        [
            "\\overrightarrow{AB}=(2,5)",
            "\\vec{a}=(2,5)",
            "\\mathbf{v}=\\langle 2,5\\rangle",
            "\\langle 2, 5 \\rangle",
            "\\overrightarrow{PQ} = \\langle 2, 5\\rangle",
            "\\boldsymbol{a}=(2,5)",
            "\\vec{AB}=(2,5)",
            "v = (2,5)",
        ],
        ["\\overrightarrow{AB}=(5,2)", "\\langle -2,5 \\rangle", "(2,-5)"],
    ),
    (
        "\\overrightarrow{AB}=(3,-4)",
        ["(3,-4)", "\\langle 3,-4\\rangle", "\\vec{AB}=(3,-4)", "AB=(3,-4)"],
        ["(4,-3)", "\\overrightarrow{BA}=(-3,4)"],
    ),
    (
        "\\langle 3,4\\rangle",
        ["(3,4)", "<3, 4>", "\\vec{v}=\\langle 3,4\\rangle"],
        ["\\langle 4,3\\rangle"],
    ),
    (
        "18",
        [
            "**Answer: 18**",
            "**Answer:** $18$",
            "**Answer**\n18",
            "```\n18\n```",
            "```text\n18\n```",
            "```math\n18\n```",
            "Answer:\n18",
            "**18** because 3*6=18",
            "18, because 3 × 6 = 18",
            "18\n\n**Explanation:** 3 rows of 6",
            "18.\nExplanation: there are 3 rows.",
            "18 since each of the 3 rows has 6",
            "The answer is **18**.",
            "The answer is $\\boxed{18}$",
            "18 cm, because it is the perimeter",
            "18, as the area is 3 times 6",
            "The final answer is 18",
            "Final Answer: 18",
            "$18$ (by multiplication of sides)",
            "18 because of the Pythagorean theorem",
            "Answer: $18$.",
            "Thus the answer is 18",
        ],
        [
            "**Answer:** 17",
            "18 or 19",
            "18 is not the answer",
            "18 because 19 is the answer",
            "17 because 18 is even",
            "19 (not 18)",
            "about 18 or 19",
            "18, wait, actually 19",
            "not 18 because it is odd",
            "```\n18 19\n```",
        ],
    ),
    (
        "x=4",
        ["x = 4, because 2x = 8", "4 because 2*4=8", "**x = 4**", "x=4 (since 2x = 8)"],
        ["x = 5 because 4+1=5"],
    ),
    (
        "60°",
        [
            "答案是60°",
            "答案为60°",
            "答案：60°",
            "∠A=60°",
            "60度",
            "正确答案是60°",
            "六十度",
            "所以答案是 60°",
        ],
        ["答案是30°", "不是60°", "答案不是60°"],
    ),
    (
        "D",
        [
            "选D",
            "选择D",
            "应选D",
            "故选：D",
            "答案选D",
            "答案是D",
            "答案：D",
            "The correct answer is D.",
            "The correct answer is: D",
            "Correct answer: D",
            "D is the correct answer.",
            "The correct option is D.",
            "The answer is option D",
            "D (the last one is right)",
            "(D) because the slope is 2",
            "D. Because the slope is 2",
            "\\text{D}",
        ],
        [
            "不选D",
            "选C",
            "D错误",
            "The incorrect answer is D",
            "The correct answer is not D",
            "D is false",
            "Not D",
            "排除D",
        ],
    ),
    (
        "B,D",
        [
            "BD",
            "B and D",
            "B, D",
            "B、D",
            "(B),(D)",
            "DB",
            "B;D",
            "选BD",
            "The answer is B, D",
            "B D",
        ],
        ["B", "ABD", "D", "BC", "B or D"],
    ),
    ("ABC", ["ABC"], ["AB", "CBA"]),
    (
        "5",
        [],
        [
            "5 thousand",
            "5 lakh",
            "5 crore",
            "5 k",
            "5 gross",
            "5-fold",
            "5%",
            "5 grand",
            "5 and three quarters",
            "quarter past 5",
            "5 bn",
            "5 mn",
            "5 mil",
            "5 Mio",
            "5 x 10^3",
            "5 degrees below",
            "5 below zero",
            "5 to the power 2",
            "5 in base 6",
            "5 over 2",
            "5 by 5",
            "5 choose 2",
            "5 percent of 20",
            "5/3",
            "square of 5",
            "5 pi",
            "5 tons of 2",
            "5 and 6",
            "5, 6",
            "5?",
            "5 (approximately 5.5)",
            "the opposite of 5",
            "5 less than x",
            "between 4 and 5",
            "under 5",
            "5 or so",
            "5-ish",
            "NOT 5",
            "no 5",
            "isn't 5",
            "5 is the wrong answer",
            "5 is excluded",
            "everything but 5",
            "-(5)",
            "1 - 5",
            "|-5|+1",
        ],
    ),
    (
        "7",
        ["seven", "Seven apples", "7 apples", "$7", "7.", "7"],
        ["seventh", "seventy", "7th", "7 tens", "7 hundredths"],
    ),
    ("True", ["true"], ["false", "not true"]),
    ("x>3", ["x>3"], ["x\\ge 3", "not x>3"]),
    (
        "\\frac{1}{2}",
        ["one half", "half", "1/2", "0.5", "a half"],
        ["one and a half", "half a dozen", "half of 3", "two"],
    ),
    ("100", ["one hundred", "a hundred", "100"], ["hundred thousand", "one hundred million"]),
    ("f(x)=2x", ["y=2x", "2x"], ["f^{-1}(x)=2x", "f(x)=3x"]),
    ("2500000", ["two and a half million", "2 and a half million"], ["two and a half"]),
    (
        "15",
        [
            "15\n\nThere are 3 rows of 5 tiles, so 3*5 = 15.",
            "15\nThe area of the square is 15",
            "15, which is the sum of 7 and 8",
            "15\n\nThis is because 3*5=15.",
            "15 (obtained by adding 7 and 8)",
            "15\n\nThe reason is that 7+8=15",
            "15. Verification: 7+8=15",
        ],
        [
            "15\n\nThere are other values such as 16 and 15",
            "16\n\nsome more words with 15",
            "15\n16",
            "15\n\nIt could be 15",
            "15\nis not the right value 15",
            "15\n15",
        ],
    ),
    (
        "x>2",
        ["\\{x \\mid x>2, x\\in\\mathbb{R}\\}", "\\{x|x\\in R, x>2\\}"],
        ["\\{x \\mid x>2, x\\in\\mathbb{Z}\\}"],
    ),
    ("x=1,y=2", ["\\{x=1, y=2\\}"], ["\\{x=2, y=1\\}"]),
    ("7", ["本题答案是7", "综上,答案为7"], ["本题答案不是7"]),
    ("late because of rain", ["Late because of rain."], ["late because of snow"]),
]

CATEGORIES: dict[str, list[Case]] = {
    "integers and decimals": INTEGERS_AND_DECIMALS,
    "fractions": FRACTIONS,
    "mixed numbers": MIXED_NUMBERS,
    "roots and powers": ROOTS_AND_POWERS,
    "pi and e": PI_AND_E,
    "degrees and trigonometry": DEGREES_AND_TRIGONOMETRY,
    "percent": PERCENT,
    "units": UNITS,
    "algebra": ALGEBRA,
    "sets, tuples, intervals": SETS_TUPLES_INTERVALS,
    "matrices": MATRICES_AND_VECTORS,
    "ratios": RATIOS,
    "complex": COMPLEX,
    "words and choices": WORDS_AND_CHOICES,
    "wrappers": WRAPPERS,
    "geometry data": GEOMETRY_DATA,
    "equations as answers": EQUATIONS_AS_ANSWERS,
    "repeated values": REPEATED_VALUES,
    "rows of numbers": ROWS_OF_NUMBERS,
    "names": NAMES,
    "case of letters": CASE_OF_LETTERS,
    "number bases": NUMBER_BASES,
    "dates": DATES,
    "modulo": MODULO,
    "sentences": SENTENCES,
    "printed doubles": PRINTED_DOUBLES,
    "traps": TRAPS,
    "number words": NUMBER_WORDS,
    "roundings": ROUNDINGS,
    "recurring decimals": RECURRING_DECIMALS,
    "units on radicals": UNITS_ON_RADICALS,
    "solution sets": SOLUTION_SETS,
    "decadic logarithms": DECADIC_LOGARITHMS,
    "named values": NAMED_VALUES,
    "vectors": VECTORS,
    "around an answer": AROUND_AN_ANSWER,
    "letters": LETTERS,
    "more spellings": MORE_SPELLINGS,
}

PAIRS: list[tuple[str, str, str, float]] = [
    (category, gold, answer, expected)
    for category, cases in CATEGORIES.items()
    for gold, right, wrong in cases
    for answers, expected in ((right, 1.0), (wrong, 0.0))
    for answer in answers
]
