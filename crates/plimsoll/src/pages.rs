//! The pages of `docs/errors/`, embedded and sorted by slug.

/// (slug, page).
pub const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.in"));

/// The page of `slug`.
pub fn page(slug: &str) -> Option<&'static str> {
    PAGES.binary_search_by_key(&slug, |(name, _)| name).ok().map(|at| PAGES[at].1)
}

/// The sentence that says what `page` is about: its first paragraph, up to the first full stop.
pub fn summary(page: &str) -> String {
    let paragraph = page.lines().skip_while(|line| line.starts_with('#') || line.trim().is_empty());
    let text: Vec<&str> = paragraph.take_while(|line| !line.trim().is_empty()).map(str::trim).collect();
    let text = text.join(" ");
    match text.find(". ") {
        Some(end) => text[..=end].to_string(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_found_and_opens_with_its_slug() {
        for (slug, text) in PAGES {
            assert_eq!(page(slug), Some(*text));
            assert!(text.starts_with(&format!("# {slug}\n")), "{slug} opens with {:?}", text.lines().next());
            assert!(!summary(text).is_empty(), "{slug}");
        }
        assert_eq!(page("no-such-slug"), None);
    }
}
