//! The page: its files, joined for the server or as a single file that opens from disk.

use plimsoll_files::base64;
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
    include_str!("page/charts.js"),
    include_str!("page/memory.js"),
    include_str!("page/ranks.js"),
    include_str!("page/samples.js"),
    include_str!("page/events.js"),
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
    let icon = base64(ICON.as_bytes());
    let head = format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"{csp}\">\n\
         <link rel=\"icon\" href=\"data:image/svg+xml;base64,{icon}\">\n<style>{STYLE}</style>"
    );
    // A script element ends at the first `</script`, so `<` in texts is escaped.
    let data = data.replace('<', "\\u003c");
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
    format!("sha256-{}", base64(&Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

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
