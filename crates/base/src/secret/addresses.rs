//! Addresses without users, passwords and queries: `http://host/path` for `http://user:password@host/path?key=...`.

use super::values::WITHHELD;

/// Hosts whose paths are keys, and the prefixes of such paths.
const HOOKS: [(&str, &str); 4] = [
    ("hooks.slack.com", "/"),
    ("discord.com", "/api/webhooks/"),
    ("discordapp.com", "/api/webhooks/"),
    ("api.telegram.org", "/"),
];
/// Words before `:` that are not users.
const NO_USERS: [&str; 13] = [
    "hf",
    "pypi",
    "python",
    "command",
    "file",
    "builtin",
    "random",
    "openenv",
    "mailto",
    "npm",
    "git",
    "sha256",
    "http-agent",
];

/// Cuts users, passwords and queries of all addresses in a text, also without `http://`.
pub(super) fn without_users(text: &str) -> String {
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let after = &rest[at + 3..];
        clean += &rest[..at + 3];
        let end = after.find(ends_address).unwrap_or(after.len());
        clean += &address(&after[..end]);
        rest = &after[end..];
    }
    without_pairs(&(clean + rest))
}

fn ends_address(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '\\')
}

/// Cleans what follows `://`.
fn address(text: &str) -> String {
    let end = text.find(['/', '?', '#']).unwrap_or(text.len());
    let at = match text[..end].rfind('@') {
        Some(at) => Some(at),
        // A password may contain characters that end a host: then the text after the colon is not a port.
        None => text.rfind('@').filter(|_| is_user(&text[..end])),
    };
    let text = at.map_or(text, |at| &text[at + 1..]);
    let text = text.split('?').next().unwrap_or_default();
    let end = text.find(['/', '#']).unwrap_or(text.len());
    let (host, path) = text.split_at(end);
    let name = host.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let hook =
        HOOKS.iter().find(|(of, start)| name == *of && path.len() > start.len() && path.starts_with(start));
    match hook {
        // An address ends at the blank in `(not shown)`.
        Some((_, start)) if !WITHHELD.starts_with(&path[start.len()..]) => format!("{host}{start}{WITHHELD}"),
        _ => text.to_string(),
    }
}

/// True for `name:password`, false for `host:80` and `[::1]:80`.
fn is_user(text: &str) -> bool {
    let colon = text.split_once(':').filter(|_| !text.starts_with('['));
    colon.is_some_and(|(_, port)| !port.is_empty() && !port.chars().all(|c| c.is_ascii_digit()))
}

/// Cuts `user:password@` before a host without a scheme.
fn without_pairs(text: &str) -> String {
    let piece = |piece: &str| {
        let found = pair_in(piece);
        found
            .map_or_else(|| piece.to_string(), |(start, end)| format!("{}{}", &piece[..start], &piece[end..]))
    };
    text.split_inclusive(char::is_whitespace).map(piece).collect()
}

/// Finds `user:password@` in a word.
fn pair_in(word: &str) -> Option<(usize, usize)> {
    if word.contains("://") {
        return None;
    }
    let at = word.rfind('@')?;
    let host = &word[at + 1..];
    let is_host = host.starts_with("localhost")
        || (host.starts_with(|c: char| c.is_ascii_alphanumeric())
            && host
                .find(['.', ':'])
                .is_some_and(|dot| host[dot + 1..].starts_with(|c: char| c.is_ascii_alphanumeric()))
            && !host.starts_with("sha256:"));
    let before = &word[..at];
    let start = before.rfind(['"', '\'', '`', '=', ',', '(', '/']).map_or(0, |start| start + 1);
    let (user, password) = before[start..].split_once(':')?;
    let is_name = !user.is_empty() && user.chars().all(|c| c.is_ascii_alphanumeric() || "._%+-".contains(c));
    (is_host && is_name && !password.is_empty() && !NO_USERS.contains(&user)).then_some((start, at + 1))
}
