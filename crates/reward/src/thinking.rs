//! Tells what a response says from what the model thought before it, by the marks that models write.

/// Marks that end thinking: those of Qwen, DeepSeek, GLM and others, and Mistral's.
const ENDS: [&str; 2] = ["</think>", "[/THINK]"];
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";

/// Returns what a response says: what follows the last end of thinking, or the last message in gpt-oss's channel
/// `final`. `None` if it has no such mark.
pub(crate) fn said(response: &str) -> Option<&str> {
    let end = |mark: &&str| Some(response.rfind(*mark)? + mark.len());
    if let Some(at) = ENDS.iter().filter_map(end).max() {
        return Some(&response[at..]);
    }
    let (_, message) = response.rsplit_once("<|channel|>final")?;
    let (header, words) = message.split_once(MESSAGE)?;
    // A recipient or a form of the words may follow the channel's name.
    let is_header = header.is_empty() || header.starts_with([' ', '<']);
    is_header.then(|| words.split_once(END).map_or(words, |(words, _)| words))
}

/// Returns true if a response has begun to think.
pub(crate) fn thinks(response: &str) -> bool {
    let is_message = || response.contains(CHANNEL) && response.contains(MESSAGE);
    ["<think>", "[THINK]"].iter().any(|mark| response.contains(mark)) || is_message()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_follows_the_thinking() {
        let hm = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
        for (response, expect, thought) in [
            ("4", None, false),
            ("<think>hm</think>4", Some("4"), true),
            ("hm</think>a</think>4", Some("4"), false),
            ("[THINK]hm[/THINK]4", Some("4"), true),
            ("<think>hm", None, true),
            (&format!("{hm}<|channel|>final<|message|>4"), Some("4"), true),
            (&format!("{hm}<|channel|>final<|message|>4<|end|>"), Some("4"), true),
            (&format!("{hm}<|channel|>final <|constrain|>json<|message|>{{}}"), Some("{}"), true),
            (&format!("{hm}<|channel|>finally<|message|>4"), None, true),
            (&format!("{hm}<|channel|>final"), None, true),
        ] {
            assert_eq!((said(response), thinks(response)), (expect, thought), "{response}");
        }
    }
}
