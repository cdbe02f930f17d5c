//! Secret names: `hub.api_key`, `HF_TOKEN`, `--hub-token`, `Authorization`, `apiKey`; not `max_tokens`, `pad_token`.

/// Words that make a name secret anywhere in it.
const ANYWHERE: [&str; 10] = [
    "bearer",
    "jwt",
    "passphrase",
    "passcode",
    "passkey",
    "cred",
    "creds",
    "authorization",
    "cookie",
    "cookies",
];
/// Words that make a name secret at its end.
const AT_END: [&str; 10] = ["pat", "sas", "pw", "pwd", "psw", "pswd", "pword", "otp", "totp", "mnemonic"];
/// Two words that make a name secret, joined or apart.
const TOGETHER: [&str; 6] = ["apikey", "accesskey", "privatekey", "secretkey", "authkey", "signingkey"];
/// Words that may follow without changing it: `auth_header`, `api_key_2`.
const AFTERWARDS: [&str; 14] = [
    "header",
    "headers",
    "string",
    "str",
    "prod",
    "production",
    "dev",
    "staging",
    "live",
    "default",
    "old",
    "new",
    "primary",
    "secondary",
];
/// Words about a service that are not secret: `auth_type`.
const OF_AUTH: [&str; 22] = [
    "type", "mode", "method", "url", "uri", "host", "enabled", "required", "provider", "scheme", "endpoint",
    "timeout", "server", "domain", "audience", "scope", "scopes", "backend", "name", "username", "disabled",
    "plugin",
];
/// Issuers of several keys or tokens: `api_keys`; `max_tokens` is a count.
const ISSUERS: [&str; 20] = [
    "api",
    "access",
    "auth",
    "secret",
    "private",
    "ssh",
    "hf",
    "hub",
    "bearer",
    "refresh",
    "session",
    "openai",
    "anthropic",
    "wandb",
    "github",
    "gitlab",
    "aws",
    "azure",
    "service",
    "bot",
];
/// Tokens of text: `pad_token`, `cost_per_token`.
const OF_TEXT: &str = "pad padding eos bos unk unknown sep cls mask masked stop end start begin image img video audio vision speech \
    special extra new next prev previous first last think thinking per prompt response completion input output max min num sub word \
    label target answer reward score separator decoder encoder assistant turn eot eom eod fim prefix suffix middle split sentinel \
    single each every by the a one of text tool action placeholder loss step cost byte control chat template patch register latent \
    draft bonus sampled generated gen block de non newline blank space empty filler count";
/// Keys of data: `input_key`, `sort_key`; and words with the same ending.
const OF_DATA: &str = "input output label prompt response answer reward fn func image images video videos audio audios message \
    messages tool tools chosen rejected column sort cache foreign primary text data dict group index idx target question completion \
    context query score thinking row split id metric monitor public value num hot short config state batch feature features obs \
    observation action kv grouping order partition shard hash lookup map json yaml name field item record source dataset solution \
    ground truth gt chat task domain tag type class category step seed path file unique composite natural surrogate parent child \
    prefix any each every by per no missing unknown the a of attention q k v rng prng random arrow enter escape tab space delete \
    page major minor turn mon don tur whis hoc joc lac instruction instructions conversation conversations document content \
    embedding vision logprob logprobs weight weights loss advantage return returns mask length";
/// Words before `pass` in the sense of a run over data: `forward_pass`.
const OF_WORK: &str = "forward backward first second two one single multi num max per low high band by full update eval prefill";

/// Returns true if a name is that of a secret.
///
/// Capitals and characters other than letters and digits separate words; a dotted name counts by its last part.
pub fn is_name_of_secret(name: &str) -> bool {
    let last = name.trim_end_matches(['.', ':', '=']).rsplit('.').next().unwrap_or_default();
    if matches!(last, "PWD" | "OLDPWD") {
        // The working directory, which every shell sets.
        return false;
    }
    let words = words_of(last);
    let words = without_numbering(&words);
    let Some((end, before)) = words.split_last() else { return false };
    let joined = words.concat();
    let is_strong = |word: &String| {
        ANYWHERE.contains(&word.as_str())
            || word.contains("passw")
            || word.starts_with("credential")
            || (word.contains("secret") && !word.contains("secretar"))
    };
    let is_auth = |word: &String| ["auth", "oauth", "oauth2"].contains(&word.as_str());
    words.iter().any(is_strong)
        || TOGETHER.iter().any(|pair| joined.contains(pair))
        || AT_END.contains(&end.as_str())
        || (words.iter().any(is_auth) && !OF_AUTH.contains(&end.as_str()))
        || ends_with(end, before, "token", OF_TEXT)
        || ends_with(end, before, "key", OF_DATA)
        || (end == "pass" && !before.last().is_some_and(|word| lists(OF_WORK, word)))
        || (["tokens", "keys"].contains(&end.as_str())
            && before.last().is_some_and(|word| ISSUERS.contains(&word.as_str())))
}

/// True for `x_token` and `xtoken`, unless `x` is in `ordinary`.
fn ends_with(end: &str, before: &[String], what: &str, ordinary: &str) -> bool {
    match end.strip_suffix(what) {
        None => false,
        Some("") => !before.last().is_some_and(|word| lists(ordinary, word)),
        Some(word) => !lists(ordinary, word),
    }
}

fn lists(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|one| one == word)
}

/// Cuts what follows the decisive word: numbers and the words in `AFTERWARDS`.
fn without_numbering(words: &[String]) -> &[String] {
    let mut words = words;
    while let [before @ .., last] = words
        && !before.is_empty()
    {
        let is_value = last == "value" && before.last().is_some_and(|word| word != "key");
        let is_number = last.chars().all(|c| c.is_ascii_digit());
        if !is_value && !is_number && !AFTERWARDS.contains(&last.as_str()) {
            break;
        }
        words = before;
    }
    words
}

/// Splits `hubToken`, `HFToken`, `HUB_TOKEN` and `hub-token` into words in lower case.
fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let chars: Vec<char> = name.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let (before, after) = (at.checked_sub(1).map(|at| chars[at]), chars.get(at + 1));
        let begins = c.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase))
            });
        if begins || !c.is_alphanumeric() {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("it began with one").extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
