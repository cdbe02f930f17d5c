//! Forms of keys: prefixes of well-known services, tokens of three parts, keys after `Bearer`, private key blocks.

use super::values::{WITHHELD, is_mixed};
use base64::engine::general_purpose::{GeneralPurpose, NO_PAD};
use base64::{Engine, alphabet};

/// Decodes what ends anywhere, as a text may.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&alphabet::STANDARD, NO_PAD.with_decode_allow_trailing_bits(true));

/// The characters of a form's keys.
#[derive(Clone, Copy)]
enum Of {
    /// Letters and digits only.
    Plain,
    Capitals,
    /// Letters, digits, `_` and `-`.
    Dashes,
    /// Letters, digits, `_`, `-`, `.` and `=`.
    Dots,
}

/// Prefix, characters after it, least number of them; `true` if it may begin within a word.
type Form = (&'static str, Of, usize, bool);

/// If few characters are enough, they must have a digit or a capital, or be long.
const FORMS: [Form; 60] = [
    ("sk-", Of::Dashes, 6, false),
    ("sk_live_", Of::Plain, 6, true),
    ("sk_test_", Of::Plain, 6, true),
    ("rk_live_", Of::Plain, 6, true),
    ("rk_test_", Of::Plain, 6, true),
    ("glsa_", Of::Dashes, 16, false),
    ("sntrys_", Of::Dots, 16, false),
    ("figd_", Of::Dashes, 16, false),
    ("whsec_", Of::Dots, 8, false),
    ("hf_", Of::Plain, 16, false),
    ("api_org_", Of::Plain, 16, false),
    ("wandb_v1_", Of::Dashes, 6, true),
    ("ghp_", Of::Dashes, 6, true),
    ("gho_", Of::Dashes, 6, true),
    ("ghu_", Of::Dashes, 6, true),
    ("ghs_", Of::Dashes, 6, true),
    ("ghr_", Of::Dashes, 6, true),
    ("github_pat_", Of::Dashes, 6, true),
    ("glpat-", Of::Dots, 6, true),
    ("gldt-", Of::Dots, 6, false),
    ("glrt-", Of::Dots, 6, false),
    ("glptt-", Of::Dots, 6, false),
    ("glcbt-", Of::Dots, 6, false),
    ("AKIA", Of::Capitals, 12, false),
    ("ASIA", Of::Capitals, 14, false),
    ("AIza", Of::Dashes, 24, true),
    ("ya29.", Of::Dots, 16, false),
    ("GOCSPX-", Of::Dashes, 6, true),
    ("xoxa-", Of::Dashes, 6, true),
    ("xoxb-", Of::Dashes, 6, true),
    ("xoxc-", Of::Dashes, 6, true),
    ("xoxd-", Of::Dots, 6, true),
    ("xoxe-", Of::Dots, 6, true),
    ("xoxe.", Of::Dots, 6, true),
    ("xoxo-", Of::Dashes, 6, true),
    ("xoxp-", Of::Dashes, 6, true),
    ("xoxr-", Of::Dashes, 6, true),
    ("xoxs-", Of::Dashes, 6, true),
    ("xapp-", Of::Dashes, 6, false),
    ("npm_", Of::Plain, 24, false),
    ("pypi-AgE", Of::Dashes, 16, false),
    ("dckr_pat_", Of::Dashes, 6, true),
    ("gsk_", Of::Plain, 16, false),
    ("xai-", Of::Dashes, 24, false),
    ("nvapi-", Of::Dashes, 12, false),
    ("pplx-", Of::Plain, 16, false),
    ("tgp_v1_", Of::Dashes, 12, false),
    ("r8_", Of::Plain, 24, false),
    ("csk-", Of::Plain, 16, false),
    ("tvly-", Of::Dashes, 12, false),
    ("jina_", Of::Plain, 24, false),
    ("rpa_", Of::Plain, 24, false),
    ("SG.", Of::Dots, 24, false),
    ("dop_v1_", Of::Plain, 16, false),
    ("hvs.", Of::Dots, 16, false),
    ("shpat_", Of::Plain, 16, false),
    ("lsv2_", Of::Dashes, 16, false),
    ("ATATT", Of::Dots, 20, false),
    ("lin_api_", Of::Plain, 12, false),
    ("AGE-SECRET-KEY-", Of::Dashes, 6, true),
];
/// The start of JSON in base64url: a token of three parts.
const TOKEN_START: &str = "eyJ";
const TOKEN_CHARS_MIN: usize = 16;
const BLOCK_STARTS: &str = "-----BEGIN ";
const BLOCK_ENDS: &str = "-----END ";

/// Returns the length of the key that `text` begins with.
fn key_at(text: &str) -> Option<usize> {
    form_at(text, false).or_else(|| token_at(text))
}

/// Returns the length of the key at the start of `text`, if it has one of the forms; `is_inside`: within a word.
fn form_at(text: &str, is_inside: bool) -> Option<usize> {
    let first = text.as_bytes().first()?;
    let forms = FORMS.iter().filter(|form| form.0.as_bytes()[0] == *first && (form.3 || !is_inside));
    forms.into_iter().find_map(|form| Some(form.0.len() + following(form, text)?))
}

fn following(form: &Form, text: &str) -> Option<usize> {
    let &(start, of, at_least, _) = form;
    let more = text.strip_prefix(start)?;
    let belongs = |c: char| match of {
        Of::Plain => c.is_ascii_alphanumeric(),
        Of::Capitals => c.is_ascii_uppercase() || c.is_ascii_digit(),
        Of::Dashes => c.is_ascii_alphanumeric() || matches!(c, '_' | '-'),
        Of::Dots => c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | '/' | '+'),
    };
    let end = more.find(|c| !belongs(c)).unwrap_or(more.len());
    let key = more[..end].trim_end_matches(['-', '.']);
    // The package for classical models is not a key.
    let is_word = start == "sk-" && key.to_ascii_lowercase().starts_with("learn");
    (key.len() >= at_least && is_mixed(key) && !is_word).then_some(key.len())
}

/// Matches `eyJ...` with more parts after dots, or long enough without.
fn token_at(text: &str) -> Option<usize> {
    if !text.starts_with(TOKEN_START) {
        return None;
    }
    let belongs = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | '+' | '/');
    let end = text.find(|c| !belongs(c)).unwrap_or(text.len());
    (end >= TOKEN_CHARS_MIN).then_some(end)
}

/// Cuts keys at the start of words, and those of unmistakable form within words.
pub(super) fn without_keys(text: &str) -> String {
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(first) = rest.chars().next() {
        if !first.is_ascii_alphabetic() {
            // No key begins there.
            let end = rest.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(rest.len());
            clean += &rest[..end];
            rest = &rest[end..];
            continue;
        }
        let is_inside = clean.ends_with(|c: char| c.is_ascii_alphanumeric()) && !ends_with_escape(&clean);
        let length = if is_inside { form_at(rest, true) } else { key_at(rest) };
        if let Some(length) = length {
            clean += WITHHELD;
            rest = &rest[length..];
        } else if !is_inside && let Some((before, key)) = scheme_at(rest) {
            clean += &rest[..before];
            clean += WITHHELD;
            rest = &rest[before + key..];
        } else {
            clean.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    clean
}

/// Returns true if a text ends with `\n`, `\r` or `\t` in JSON spelling.
fn ends_with_escape(text: &str) -> bool {
    ["\\n", "\\r", "\\t"].iter().any(|escape| text.ends_with(escape))
}

/// Returns the lengths of `Bearer ` and of the key after it, or of `Basic ` and `name:password` in base64 after it.
fn scheme_at(text: &str) -> Option<(usize, usize)> {
    let end = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let (scheme, rest) = text.split_at(end);
    let blanks = rest.len() - rest.trim_start_matches([' ', '\t', '\\']).len();
    let is_basic = scheme.eq_ignore_ascii_case("basic");
    if blanks == 0 || !(is_basic || scheme.eq_ignore_ascii_case("bearer")) {
        return None;
    }
    let rest = &rest[blanks..];
    let belongs = |c: char| c.is_ascii_alphanumeric() || "-._~+/=:".contains(c);
    let key = rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())].trim_end_matches(['.', ':']);
    let is_pair = || decoded(key).is_some_and(|pair| pair.contains(&b':'));
    let is_likely = key.len() >= 8 && key.contains(|c: char| c.is_ascii_digit() || c == '=');
    let is_key = if is_basic { is_pair() || (is_likely && is_mixed(key)) } else { is_mixed(key) };
    is_key.then_some((end + blanks, key.len()))
}

/// Decodes base64; `None` if it is not, or too short for a name and a password of one character each.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if digits.len() < 4 {
        return None;
    }
    let bytes = BASE64.decode(digits.replace('-', "+").replace('_', "/")).ok()?;
    // Words of letters decode too, to unprintable characters.
    bytes.iter().all(|byte| (0x20..0x7f).contains(byte)).then_some(bytes)
}

/// Cuts `-----BEGIN ... PRIVATE KEY-----` up to the end of its last line, or of the text.
pub(super) fn without_blocks(text: &str) -> String {
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(BLOCK_STARTS) {
        let name = &rest[at + BLOCK_STARTS.len()..];
        let dashes = name.find("-----").unwrap_or(name.len());
        clean += &rest[..at];
        if !name[..dashes].contains("PRIVATE KEY") {
            clean += BLOCK_STARTS;
            rest = name;
            continue;
        }
        clean += WITHHELD;
        let body = name.get(dashes + 5..).unwrap_or_default();
        rest = body.find(BLOCK_ENDS).map_or("", |end| {
            let last = &body[end + BLOCK_ENDS.len()..];
            last.find("-----").map_or("", |dashes| &last[dashes + 5..])
        });
    }
    clean + rest
}
