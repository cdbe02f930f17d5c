//! Fenced blocks of a response: where they begin and end, and which one is the program, or the JSON.
//!
//! Fences are read line by line, as CommonMark does: three or more backticks or tildes begin a line, and a line of them
//! alone ends the block. Fences that models put at the end of a line count too; pairs within a line do not.

use std::borrow::Cow;

/// Most blocks of a response; earlier ones do not count.
const BLOCKS_MAX: usize = 64;
/// Most names that a block's definitions are looked up by.
const NAMES_MAX: usize = 64;
/// Names of Python after a fence.
const PYTHON: [&str; 7] = ["python", "python3", "py", "py3", "python2", "ipython", "pycon"];

/// A closed block: the word after its fence, in small letters, and its lines.
#[derive(Clone, Debug, PartialEq)]
struct Block<'t> {
    language: String,
    body: Cow<'t, str>,
}

/// Returns the program in a response; without a block, what follows the thinking, or all of it.
pub(crate) fn program_said(response: &str) -> Cow<'_, str> {
    let said = after_thinking(response);
    program(blocks(said)).unwrap_or(Cow::Borrowed(said.trim()))
}

/// Returns the program in the fenced blocks of a text, if it has any block.
pub fn fenced_program(text: &str) -> Option<Cow<'_, str>> {
    program(blocks(text))
}

/// Returns the JSON in a response: the last block of that language, else the last one; without one, the whole text.
pub(crate) fn json_said(response: &str) -> Cow<'_, str> {
    let said = after_thinking(response);
    let mut blocks = blocks(said);
    let at = blocks.iter().rposition(|block| block.language.starts_with("json"));
    let last = blocks.len().checked_sub(1);
    match at.or(last) {
        Some(at) => blocks.swap_remove(at).body,
        None => Cow::Borrowed(said.trim()),
    }
}

fn after_thinking(response: &str) -> &str {
    crate::thinking::said(response).unwrap_or(response)
}

/// Chooses the last block that is a program and no example of one before it; without programs, the last block.
fn program(mut blocks: Vec<Block<'_>>) -> Option<Cow<'_, str>> {
    let is_python = |block: &Block| PYTHON.contains(&block.language.as_str());
    let unnamed = |block: &Block| block.language.is_empty() && looks_like_python(&block.body);
    let programs: Vec<usize> =
        (0..blocks.len()).filter(|&k| is_python(&blocks[k]) || unnamed(&blocks[k])).collect();
    let mut chosen = programs.last().copied();
    for &at in programs.iter().rev().skip(1) {
        let Some(last) = chosen else { break };
        if is_example(&blocks[last].body, &blocks[at].body) {
            chosen = Some(at);
        }
    }
    // Without a program a block in no language is taken, else any.
    let plain = || blocks.iter().rposition(|block| block.language.is_empty());
    let at = chosen.or_else(plain).or(blocks.len().checked_sub(1))?;
    Some(blocks.swap_remove(at).body)
}

/// True if a block only calls what an earlier one defines, or says nothing at all.
fn is_example(block: &str, earlier: &str) -> bool {
    let code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    if !block.lines().any(|line| code(&line)) {
        return true;
    }
    let own: Vec<&str> = definitions(block).collect();
    definitions(earlier).any(|name| {
        let called = block.match_indices(name).any(|(at, _)| {
            let before = block[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '.'))
                && block[at + name.len()..].starts_with('(')
        });
        called && !own.contains(&name)
    })
}

/// Returns the names of functions and classes that begin at the margin.
fn definitions(body: &str) -> impl Iterator<Item = &str> {
    let name = |line: &'_ str| -> Option<(usize, usize)> {
        let rest = line.strip_prefix("async ").unwrap_or(line);
        let rest = ["def ", "class "].iter().find_map(|word| rest.strip_prefix(word))?.trim_start();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let start = line.len() - rest.len();
        (end > 0).then_some((start, start + end))
    };
    body.lines().filter_map(move |line| name(line).map(|(start, end)| &line[start..end])).take(NAMES_MAX)
}

/// True for a text with a line that only a program has; outputs of one have none.
fn looks_like_python(body: &str) -> bool {
    body.lines().any(|line| {
        let line = line.trim();
        let begins = |word: &str| line.starts_with(word);
        let block = line.ends_with(':') || line.contains(": ");
        begins("def ")
            || begins("import ")
            || begins("class ")
            || (begins("from ") && line.contains(" import "))
            || line.contains("print(")
            || line.contains("input(")
            || line.contains("sys.stdin")
            || begins("return ")
            || (block && ["for ", "while ", "if ", "with ", "try"].iter().any(|word| begins(word)))
            || is_assignment(line)
    })
}

/// True for `x = 1` and `a, b = f(2)`; an output of `x = 1` is taken for one too.
fn is_assignment(line: &str) -> bool {
    let Some((name, value)) = line.split_once('=') else { return false };
    let name = name.trim_end_matches(['+', '-', '*', '/', '%']).trim();
    let named = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ' ' | '.' | '[' | ']'));
    let words = name.split(' ').filter(|word| !word.is_empty() && !word.ends_with(',')).count();
    named && words == 1 && !value.trim().is_empty() && !value.starts_with('=')
}

struct Fence {
    mark: char,
    length: usize,
    indent: usize,
    language: String,
    /// Where its body begins.
    start: usize,
}

/// Returns closed blocks, in order; of many the last.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let (mut found, mut open): (Vec<Block>, Option<Fence>) = (Vec::new(), None);
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (start, end) = (at, at + line.len());
        at = end;
        let plain = line.trim_end();
        if let Some(fence) = &open
            && let Some(code) = closes(fence, plain)
        {
            // Code may be before the fence on its line.
            let body = &text[fence.start..start + code];
            if found.len() == BLOCKS_MAX {
                found.remove(0);
            }
            found.push(Block { language: fence.language.clone(), body: unindented(body, fence.indent) });
            open = None;
            continue;
        }
        let opened = opens(plain, end);
        // A fence with a language ends no block: the one before it was left open.
        let again = |fence: &Fence, new: &Fence| {
            new.mark == fence.mark && new.length >= fence.length && !new.language.is_empty()
        };
        if let Some(new) = opened
            && open.as_ref().is_none_or(|fence| again(fence, &new))
        {
            open = Some(new);
        }
    }
    found
}

/// Returns the length of the code before the fence that ends a block on this line.
fn closes(fence: &Fence, line: &str) -> Option<usize> {
    let rest = line.trim_end_matches(fence.mark);
    if line.len() - rest.len() < fence.length {
        return None;
    }
    let alone = rest.chars().all(|c| c.is_whitespace() || c == '>');
    // `print(1)```` ends it as well, but a pair in a comment does not.
    let single = fence.mark == '`' && !rest.contains("```");
    if alone { Some(0) } else { single.then_some(rest.len()) }
}

/// Returns the fence that a line opens; its body begins at `start`.
fn opens(line: &str, start: usize) -> Option<Fence> {
    let (at, mark) = ["```", "~~~"].iter().filter_map(|mark| Some((line.find(mark)?, mark))).min()?;
    let mark = mark.chars().next()?;
    let length = line[at..].chars().take_while(|&c| c == mark).count();
    let info = line[at + length..].trim();
    let before = &line[..at];
    if info.contains(mark) {
        return None;
    }
    let listed = before.trim_start_matches(|c: char| {
        c.is_whitespace() || matches!(c, '-' | '*' | '+' | '>' | '.' | ')') || c.is_ascii_digit()
    });
    let word = info.split([' ', ',', '{', ':']).next().unwrap_or("");
    let named = word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '#' | '-' | '_' | '.'))
        && !word.starts_with('.');
    // At the end of a line: only before a language or nothing, and only for backticks.
    let known = info.is_empty() || PYTHON.contains(&info.to_lowercase().as_str()) || info.starts_with("json");
    if !named || (!listed.is_empty() && (mark == '~' || !known)) {
        return None;
    }
    let indent = if listed.is_empty() { before.chars().count() } else { 0 };
    Some(Fence { mark, length, indent, language: word.trim_start_matches('.').to_lowercase(), start })
}

/// Removes up to `indent` columns of white space, or marks of a quotation, from each line.
fn unindented(body: &str, indent: usize) -> Cow<'_, str> {
    if indent == 0 {
        return Cow::Borrowed(body);
    }
    let line = |line: &str| -> String {
        let taken = line.chars().take(indent).take_while(|c| matches!(c, ' ' | '\t' | '>')).count();
        line.chars().skip(taken).collect()
    };
    Cow::Owned(body.split_inclusive('\n').map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_counts() {
        for (response, expect) in [
            ("print(1)", "print(1)"),
            ("so\n```python\na = 1\n```\nand\n```\nb = 2\n```\ndone", "b = 2\n"),
            ("<think>```\nno\n```</think> plain ", "plain"),
            ("```json\n{}\n```", "{}\n"),
            ("```python\nnever closed", "```python\nnever closed"),
            ("```", "```"),
        ] {
            assert_eq!(json_said(response), expect, "{response:?}");
            assert_eq!(program_said(response), expect, "{response:?}");
        }
    }

    /// The output after a program was run, fences within a line were paired, and a list's indentation was code.
    #[test]
    fn r_another_block_was_run_for_the_program() {
        for (response, expect) in [
            ("```python\nprint(3)\n```\nOutput:\n```\n3\n```", "print(3)\n"),
            ("```python\nprint(3)\n```\nIt prints\n```text\n3\n```\n", "print(3)\n"),
            ("```\nprint(3)\n```\n\n```\n3\n```", "print(3)\n"),
            ("```py\nprint(3)\n```\nRun it:\n```bash\npython main.py\n```", "print(3)\n"),
            ("```python\nprint(3)\n```\nIn:\n```json\n{\"a\": 1}\n```", "print(3)\n"),
            ("```bash\npip install x\n```\n```Python\nprint(3)\n```", "print(3)\n"),
            ("1. Like so:\n\n   ```python\n   if 1:\n       print(3)\n   ```\n", "if 1:\n    print(3)\n"),
            ("- ```python\n  print(3)\n  ```\n", "print(3)\n"),
            ("2. ```python\n   print(3)\n   ```\n", "print(3)\n"),
            ("> ```python\n> print(3)\n> ```\n", "print(3)\n"),
            ("    ```python\n    print(3)\n\n    print(4)\n    ```", "print(3)\n\nprint(4)\n"),
            ("Read it with ```input()``` first.\n```python\nprint(3)\n```", "print(3)\n"),
            ("```input()``` reads a line.\n\n```python\nprint(3)\n```", "print(3)\n"),
            ("Code goes between ``` marks.\n```python\nprint(3)\n```", "print(3)\n"),
            ("The answer, in ```.\n```python\nprint(3)\n```", "print(3)\n"),
            ("```\n```python\nprint(3)\n```", "print(3)\n"),
            ("Here: ```python\nprint(3)\n```", "print(3)\n"),
            ("```python\nprint(3)```", "print(3)"),
            ("~~~python\nprint(3)\n~~~\n", "print(3)\n"),
            ("````python\ns = '''\n```\n'''\nprint(3)\n````\n", "s = '''\n```\n'''\nprint(3)\n"),
            ("```python\nx = '```'\nprint(3)\n```", "x = '```'\nprint(3)\n"),
            ("```python title=\"main.py\"\nprint(3)\n```", "print(3)\n"),
            ("```{python}\nprint(3)\n```", "print(3)\n"),
            ("```python\r\nprint(3)\r\n```\r\n", "print(3)\r\n"),
            (
                "```python\ndef f(x):\n    return x\n```\nFor example:\n```python\nprint(f(3))  # 3\n```",
                "def f(x):\n    return x\n",
            ),
            (
                "```python\ndef f(x):\n    return x\n```\nOr:\n```python\ndef f(x): return x + 0\nf(1)\n```",
                "def f(x): return x + 0\nf(1)\n",
            ),
            ("```python\na = 1\n```\nBetter:\n```python\nprint(3)\n```", "print(3)\n"),
            ("```python\nprint(3)\n```\n```python\n# 3\n```", "print(3)\n"),
        ] {
            assert_eq!(program_said(response), expect, "{response:?}");
        }
    }

    #[test]
    fn json_is_in_its_own_block_where_it_has_one() {
        for (response, expect) in [
            ("```json\n{\"a\": 1}\n```\nas in\n```text\nschema\n```", "{\"a\": 1}\n"),
            ("```\n{\"a\": 1}\n```", "{\"a\": 1}\n"),
            ("   ```json\n   {\"a\": 1}\n   ```", "{\"a\": 1}\n"),
            ("with ```json``` marks:\n```json\n{\"a\": 1}\n```", "{\"a\": 1}\n"),
        ] {
            assert_eq!(json_said(response), expect, "{response:?}");
        }
    }

    #[test]
    fn a_megabyte_of_fences_comes_back_at_once() {
        for text in
            ["```\n", "```", "```python\n```\n", "~~~", "`````\n```\n", "```python\ndef f(): f(\n```\n"]
        {
            let text = text.repeat((1 << 20) / text.len());
            program_said(&text);
            json_said(&text);
        }
    }
}
