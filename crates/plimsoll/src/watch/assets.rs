//! The page: its files, joined for the server or as a single file that opens from disk.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use plimsoll_base::visible_json;
use sha2::{Digest, Sha256};

/// <https://github.com/leeoniya/uPlot> 1.6.32, as published; its licence (MIT) is next to it.
pub const UPLOT: &str = include_str!("page/uplot/uPlot.iife.min.js");
pub const STYLE: &str =
    concat!(include_str!("page/uplot/uPlot.min.css"), "\n", include_str!("page/style.css"));
/// All scripts, in one scope.
pub const APP: &str = concat!(
    "(() => {\n\"use strict\";\n",
    include_str!("page/dom.js"),
    include_str!("page/source.js"),
    include_str!("page/groups.js"),
    include_str!("page/charts.js"),
    include_str!("page/memory.js"),
    include_str!("page/ranks.js"),
    include_str!("page/samples.js"),
    include_str!("page/events.js"),
    include_str!("page/table.js"),
    include_str!("page/place.js"),
    include_str!("page/main.js"),
    "})();\n"
);
/// The mark: a disc with the load line through it.
pub const ICON: &str = include_str!("page/icon.svg");
const BODY: &str = include_str!("page/body.html");

pub fn page() -> String {
    let head = "<link rel=\"icon\" href=\"icon.svg\">\n<link rel=\"stylesheet\" href=\"style.css\">\n\
                <script src=\"uplot.js\" defer></script>\n<script src=\"app.js\" defer></script>";
    document(head, "")
}

/// Returns the page with `data` (JSON) embedded, which loads nothing else.
pub fn whole(data: &str) -> String {
    let csp = format!(
        "default-src 'none'; script-src '{}' '{}'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
        hash(UPLOT),
        hash(APP),
        hash(STYLE)
    );
    let icon = BASE64.encode(ICON);
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{csp}\">\n\
         <link rel=\"icon\" href=\"data:image/svg+xml;base64,{icon}\">\n<style>{STYLE}</style>"
    );
    // A script element ends at the first `</script`, so `<` in texts is escaped.
    let data = visible_json(data).replace('<', "\\u003c");
    let foot = format!(
        "<script type=\"application/json\" id=\"data\">{data}</script>\n<script>{UPLOT}</script>\n<script>{APP}</script>\n"
    );
    document(&head, &foot)
}

fn document(head: &str, foot: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Plimsoll</title>\n{head}\n</head>\n{BODY}{foot}</html>\n"
    )
}

/// Returns the hash by which a content security policy names an inline script or style.
fn hash(text: &str) -> String {
    format!("sha256-{}", BASE64.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class of `HIDDEN` in the scripts, character by character.
    fn hidden_on_the_page() -> Vec<char> {
        let class = APP.split_once("HIDDEN = /[").expect("it is there").1;
        let class = class.split_once("]/gu").expect("it ends").0.replace("\\0", "\\x00");
        let mut ends: Vec<(char, bool)> = Vec::new();
        for (index, part) in class.split('\\').enumerate().skip(1) {
            let is_range = part.ends_with('-');
            let digits: String = part[1..].chars().filter(char::is_ascii_hexdigit).collect();
            let code = u32::from_str_radix(&digits, 16).unwrap_or_else(|_| panic!("part {index}: {part}"));
            ends.push((char::from_u32(code).expect("a character"), is_range));
        }
        let after_range = |at: usize| at > 0 && ends[at - 1].1;
        let range = |at: usize| ends[at].0..=ends[if ends[at].1 { at + 1 } else { at }].0;
        (0..ends.len()).filter(|&at| !after_range(at)).flat_map(range).collect()
    }

    #[test]
    fn the_page_hides_what_terminals_may_not_have() {
        let mut hidden = hidden_on_the_page();
        hidden.sort_unstable();
        let all = (0..=0x10ffff).filter_map(char::from_u32).filter(|c| plimsoll_base::is_hidden(*c));
        assert_eq!(hidden, all.collect::<Vec<char>>());
        // All texts of runs pass `visible`.
        for (at, _) in APP.match_indices("createTextNode(") {
            assert!(APP[at..].starts_with("createTextNode(visible("), "{}", &APP[at..at + 60]);
        }
        for (at, _) in APP.match_indices(".textContent = ") {
            let rest = &APP[at + ".textContent = ".len()..];
            let is_literal = rest.starts_with('"') || rest.starts_with("up ? \"live\"");
            assert!(is_literal || rest.starts_with("visible("), "{}", &rest[..60]);
        }
        let page = whole("{\"a\":\"\u{202e}\u{9b}31m\"}");
        assert!(page.contains("{\"a\":\"\\u202e\\u009b31m\"}") && !page.contains(plimsoll_base::is_hidden));
    }

    #[test]
    fn nothing_ends_an_inline_script_early_and_nothing_is_loaded() {
        for part in [UPLOT, APP, STYLE] {
            let part = part.to_lowercase();
            assert!(!part.contains("</script") && !part.contains("</style") && !part.contains("<!--"));
        }
        let page = whole("{\"a\":\"</script><script>alert(1)</script>\"}");
        assert!(page.contains("\\u003c/script>\\u003cscript>alert(1)"));
        assert!(!page.contains("src=\"") && !page.contains("@import") && !page.contains("url("));
        for unsafe_way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
        {
            assert!(!APP.contains(unsafe_way), "{unsafe_way}");
        }
    }
}
