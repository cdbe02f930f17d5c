//! The `math` verifier: our own cases, hostile text, and text made of random pieces.

use plimsoll_reward::math::grade_math;
use proptest::prelude::*;
use serde_json::Value;
use std::time::{Duration, Instant};

#[test]
fn our_cases_are_decided_as_a_reader_would() {
    let cases = include_str!("../math_cases.jsonl");
    let mut wrong = Vec::new();
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("the cases are JSON");
        let text = |name: &str| case[name].as_str().expect("a case has its texts").to_string();
        let verdict = grade_math(&text("response"), &text("ground_truth"));
        if Some(verdict) != case["correct"].as_bool() {
            wrong.push(line);
        }
    }
    assert!(cases.lines().count() > 500 && wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Each pair with its verdict, in the box or in the sentence in which it was found.
#[test]
fn pairs_are_decided_as_a_careful_reader_would() {
    let pairs = include_str!("../math_pairs.txt");
    let mut wrong = Vec::new();
    for line in pairs.lines().filter(|line| !line.starts_with('#')) {
        let (answer, rest) = line.split_once(" ~~ ").expect("a pair has two sides");
        let (truth, verdict) = rest.rsplit_once(' ').expect("a pair has a verdict");
        let response = match answer.strip_prefix("> ") {
            Some(whole) => whole.replace('⏎', "\n"),
            None => format!("So $\\boxed{{{answer}}}$."),
        };
        if grade_math(&response, truth) != (verdict == "+") {
            wrong.push(line);
        }
    }
    assert!(pairs.lines().count() > 400 && wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// An equation alone was refused where the same one after a sentence was right, because only its last number was read.
#[test]
fn r_an_equation_depended_on_the_text_before_it() {
    for before in ["", "Apte-te it. Love it!\n\n", "So the answer is ", "Total: "] {
        for (equation, expect) in
            [("3 + 4 = 7", true), ("3 + 5 = 7", false), ("3 + 4 = 8", false), ("= 7", true)]
        {
            assert_eq!(grade_math(&format!("{before}{equation}"), "7"), expect, "{before}{equation}");
        }
    }
}

/// Text that would cost exponential work, deep recursion or huge numbers if anything were unbounded.
fn hostile() -> Vec<String> {
    let list = |n: usize, f: &dyn Fn(usize) -> String, by: &str| (0..n).map(f).collect::<Vec<_>>().join(by);
    let nested = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    vec![
        "9".repeat(1 << 20),
        "{".repeat(1 << 20),
        "\\boxed{".repeat(50_000),
        "\\boxed".repeat(50_000),
        "\\boxed-".repeat(50_000),
        nested("{", "}", 100_000),
        nested("(", ")", 8000),
        nested("\\left(", "\\right)", 4000),
        nested("f(", ")", 4000),
        nested("\\text{", "}", 5000),
        nested("\\boxed{", "}", 20_000),
        "$".repeat(500_001),
        "\\(".repeat(100_000),
        format!("{}2", "\\sqrt".repeat(3000)),
        format!("{}x", "\\sin ".repeat(3000)),
        format!("{}1", "-".repeat(8000)),
        format!("1{}", "!".repeat(5000)),
        format!("1{}", "/1".repeat(4000)),
        format!("{}1", "a_".repeat(4000)),
        format!("{}2", "x^".repeat(4000)),
        format!("{}1", "x:".repeat(4000)),
        format!("{}b", "a<".repeat(3000)),
        "|".repeat(4000),
        "1 and ".repeat(20_000),
        "\\boxed{1},".repeat(30_000),
        format!("{}(2,3)", "(0,1)\\cup".repeat(2000)),
        list(31, &|i| format!("({i},{})", i + 1), "\\cup"),
        list(600, &|i| format!("x^{{{i}}}+y"), ","),
        list(700, &|i| format!("\\sin(x+{i})^{{y}}"), "+"),
        format!("{}k", "\\sum_{k=1}^{499}".repeat(4)),
        format!("{}k", "\\sum_{k=1}^n k\\\\".repeat(79)),
        format!("{}1{}", "\\frac{1}{1+x".repeat(79), "}".repeat(79)),
        format!("{}1{}", "\\sqrt{1+x".repeat(79), "}".repeat(79)),
        format!("{}1{}", "f(1+x".repeat(79), ")".repeat(79)),
        "\\binom{1000}{500}".repeat(900),
        "1499!".repeat(1500),
        "10^{10^{10^{10}}}".into(),
        nested("(", "!)", 9),
        "e^{e^{e^{e^{9}}}}".into(),
        "½".repeat(50_000),
        "\\\\".repeat(100_000),
        "the answer is ".repeat(30_000),
        "\\pm 1".repeat(1000),
        "1 = ".repeat(1 << 18),
        format!("1+1=2{}", " = 2".repeat(1 << 18)),
        format!("{}1 = 1", "(".repeat(100_000)),
        "100 ".repeat(250_000),
        "(mod ".repeat(100_000),
        format!("1{}", " \\bmod 2".repeat(3000)),
        "x<1 or ".repeat(1000),
        "k\\in\\mathbb{Z}, ".repeat(1000),
        "\\text{(A) ".repeat(50_000),
        "\\triangle ".repeat(1500),
        format!(
            "\\begin{{pmatrix}}{}\\end{{pmatrix}}^{{16}}",
            list(30, &|i| list(30, &|j| (i * j).to_string(), "&"), "\\\\")
        ),
    ]
}

/// Half of a grader's stack, which leaves room for other processors' frames.
const HALF_STACK_BYTES: usize = 512 << 10;

#[test]
fn hostile_text_comes_back_soon() {
    let thread = std::thread::Builder::new().stack_size(HALF_STACK_BYTES).spawn(grade_hostile_text);
    thread.expect("a thread starts").join().expect("no verdict is late");
}

fn grade_hostile_text() {
    for text in hostile() {
        for response in [text.clone(), format!("\\boxed{{{text}}}"), format!("${text}$")] {
            for truth in ["x+2", "1,2,3", text.as_str()] {
                let start = Instant::now();
                grade_math(&response, truth);
                grade_math(truth, &response);
                // Two verdicts; each is below 0.1 s on an idle core, and the machine may be busy.
                let head: String = response.chars().take(40).collect();
                assert!(start.elapsed() < Duration::from_secs(5), "{:?} for {head}", start.elapsed());
            }
        }
    }
}

/// A box without braces was taken to reach over a box within it, and the text between the two was cut backwards.
#[test]
fn r_boxes_without_braces_overlapped() {
    for (response, truth, expect) in [
        ("\\boxed9{\\dbinom{\\boxed{3}6}{2}}", "3", true),
        ("\\boxed{\\boxed 3}x5", "3", true),
        ("so {\\boxed 3}, right", "3", true),
        ("\\boxed -5\\boxed{4}", "4", true),
        ("\\boxed 5.", "5", true),
    ] {
        assert_eq!(grade_math(response, truth), expect, "{response}");
    }
}

const PIECES: [&str; 60] = [
    "1",
    "2",
    "10",
    "0.5",
    ".",
    ",",
    ";",
    ":",
    "+",
    "-",
    "*",
    "/",
    "^",
    "_",
    "=",
    "<",
    ">",
    "!",
    "%",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "\\{",
    "\\}",
    "|",
    "$",
    " ",
    "x",
    "y",
    "e",
    "i",
    "f",
    "and",
    "or",
    "cm",
    "\\frac",
    "\\sqrt",
    "\\pi",
    "\\pm",
    "\\cup",
    "\\in",
    "\\infty",
    "\\le",
    "\\text{",
    "\\boxed{",
    "\\begin{pmatrix}",
    "\\end{pmatrix}",
    "&",
    "\\\\",
    "\\sin",
    "\\log",
    "\\sum",
    "\\binom",
    "\\left",
    "\\%",
    "é",
    "\\",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_pieces_never_panic(picks in prop::collection::vec(0..PIECES.len(), 0..24), others in prop::collection::vec(0..PIECES.len(), 0..12)) {
        let text = |picks: &[usize]| picks.iter().map(|&k| PIECES[k]).collect::<String>();
        let (response, truth) = (text(&picks), text(&others));
        grade_math(&response, &truth);
        grade_math(&format!("\\boxed{{{response}}}"), &truth);
        grade_math(&truth, &response);
    }

    #[test]
    fn whole_numbers_are_equal_only_to_themselves(a in -2000i64..2000, b in -2000i64..2000) {
        prop_assert_eq!(grade_math(&format!("\\boxed{{{a}}}"), &b.to_string()), a == b);
        let found = grade_math(&format!("The answer is {a}."), &format!("${a}$"));
        prop_assert!(found);
    }

    #[test]
    fn fractions_are_equal_when_their_products_are(a in 1i64..60, b in 1i64..60, c in 1i64..60, d in 1i64..60) {
        let verdict = grade_math(&format!("\\boxed{{\\frac{{{a}}}{{{b}}}}}"), &format!("{c}/{d}"));
        prop_assert_eq!(verdict, a * d == b * c);
    }
}
