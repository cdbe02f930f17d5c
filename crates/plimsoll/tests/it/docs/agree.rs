//! Whether what a command printed is what its page shows.
//!
//! A shown line must be in the output unchanged. `…` within it is any text, `…` alone any lines. In blocks whose
//! numbers vary, so may sparklines, and other lines may come between the shown ones.

/// Says what any text and any lines are shown as.
pub const ANY: char = '…';

/// The first shown line that is not in the output where it should be.
pub fn first_difference<'a>(shown: &'a [String], output: &str, numbers_are_free: bool) -> Option<&'a str> {
    let form =
        |line: &str| if numbers_are_free { shape(line.trim_end()) } else { line.trim_end().to_string() };
    let lines: Vec<String> = output.lines().map(form).collect();
    let mut at = 0;
    // Lines after an elision may begin anywhere; the first line begins at the top.
    let mut may_skip = numbers_are_free;
    for line in shown {
        if line.trim() == ANY.to_string() {
            may_skip = true;
            continue;
        }
        let wanted = form(line);
        let found = lines[at..].iter().position(|line| matches(&wanted, line));
        match found {
            Some(ahead) if ahead == 0 || may_skip => at += ahead + 1,
            _ => return Some(line),
        }
        may_skip = numbers_are_free;
    }
    None
}

/// The index of the line that is `shown` but for its numbers; of several, the first that agrees the longest:
/// `step 20/200` is not replaced by `step 1/200`.
pub fn best_match(shown: &str, lines: &[&str]) -> Option<usize> {
    let wanted = shape(shown.trim_end());
    let equal = |line: &str| shown.chars().zip(line.chars()).take_while(|(a, b)| a == b).count();
    let found = lines.iter().enumerate().filter(|(_, line)| matches(&wanted, &shape(line.trim_end())));
    found.rev().max_by_key(|(_, line)| equal(line)).map(|(index, _)| index)
}

/// Whether `text` is `pattern`, in which `…` is any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The line with each number as `#`, each sparkline as `~`, and columns as near as words.
fn shape(line: &str) -> String {
    let mut out = String::new();
    for c in line.chars() {
        let kind = match c {
            '0'..='9' => '#',
            '▁'..='█' => '~',
            _ => c,
        };
        // `0.293` and `-12` are one number; a dot at the end of a sentence is none.
        let is_again = matches!(kind, '#' | '~' | ' ') && out.ends_with(kind);
        if kind == '#' && (out.ends_with("#.") || out.ends_with(" -")) {
            out.pop();
            if !out.ends_with('#') {
                out.push('#');
            }
        } else if !is_again {
            out.push(kind);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differs(shown: &str, output: &str, free: bool) -> bool {
        let shown: Vec<String> = shown.lines().map(str::to_string).collect();
        first_difference(&shown, output, free).is_some()
    }

    #[test]
    fn lines_agree() {
        let output = "one 1\ntwo 2\nthree 3\nfour 4\n";
        for (shown, free, differing) in [
            ("", false, false),
            ("one 1\ntwo 2", false, false),
            ("one 1\nthree 3", false, true),
            ("one 1\n…\nthree 3", false, false),
            ("…\nfour 4", false, false),
            ("two 2", false, true),
            ("one …\ntwo 2", false, false),
            ("one …\n…\nfour 5", false, true),
            ("one 1\none 1", false, true),
            ("one 12.5\nfour 40", true, false),
            ("four 1\none 1", true, true),
            ("five 5", true, true),
        ] {
            assert_eq!(differs(shown, output, free), differing, "{shown:?}");
        }
    }

    #[test]
    fn shapes_of_lines() {
        assert_eq!(shape("held-out  0.293 before   ▁▇█"), "held-out # before ~");
        assert_eq!(shape("from -1.4 to   3.2"), shape("from 10 to -0.25"));
        assert_eq!(shape("step 20/200: 4. five"), "step #/#: #. five");
        assert!(
            matches("a…c", "abc") && matches("a…", "a") && !matches("a…c", "ab") && matches("…b…", "abc")
        );
    }
}
