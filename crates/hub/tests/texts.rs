//! Texts and conversations against transformers' tokenizers, and lines that are no samples.

mod common;

use std::io::Write;
use std::path::PathBuf;

use common::{fixture, json};
use plimsoll_hub::{Message, Texts, Tokenizer};

fn file(name: &str, lines: &[&str]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("plimsoll-texts-{name}-{}.jsonl", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    lines.iter().for_each(|line| writeln!(file, "{line}").unwrap());
    path
}

#[test]
fn tokens_and_conversations_are_those_of_transformers() {
    let tokenizer = Tokenizer::open(&fixture("llama")).unwrap();
    let golden = json(fixture("llama/texts.json"));
    for sample in golden["samples"].as_array().unwrap() {
        let expected: Vec<u32> = serde_json::from_value(sample["tokens"].clone()).unwrap();
        let encoded = tokenizer.encode(sample["text"].as_str().unwrap(), true).unwrap();
        assert_eq!(encoded.tokens, expected);
        assert_eq!(tokenizer.decode(&expected).unwrap(), sample["back"].as_str().unwrap());
    }
    let chat: Vec<Message> = serde_json::from_value(golden["chat"].clone()).unwrap();
    let template = tokenizer.template.as_ref().unwrap();
    assert_eq!(template.render(&chat, false).unwrap(), golden["rendered"].as_str().unwrap());
    assert_eq!(template.render(&chat[..2], true).unwrap(), golden["prompted"].as_str().unwrap());
    let expected: Vec<u32> = serde_json::from_value(golden["chat_tokens"].clone()).unwrap();
    assert_eq!(tokenizer.encode(golden["rendered"].as_str().unwrap(), false).unwrap().tokens, expected);
}

#[test]
fn only_what_the_assistant_says_is_learnt() {
    let tokenizer = Tokenizer::open(&fixture("llama")).unwrap();
    let path = file(
        "chat",
        &[
            r#"{"messages": [{"role": "user", "content": "the ship"}, {"role": "assistant", "content": "is a machine"}]}"#,
            r#"{"prompt": "the ship", "completion": " is the machine"}"#,
            r#"{"text": "the ship"}"#,
        ],
    );
    let mut texts = Texts::open(&path, &tokenizer, tokenizer.eos, 288).unwrap();
    let learnt = |texts: &mut Texts| {
        let sample = texts.read().unwrap().unwrap();
        let own: Vec<u32> =
            sample.tokens.iter().zip(&sample.counts).filter(|(_, c)| **c).map(|(t, _)| *t).collect();
        assert_eq!(*sample.tokens.last().unwrap(), tokenizer.eos.unwrap());
        (tokenizer.decode(&own).unwrap(), own.len(), sample.tokens.len())
    };
    let (text, n, all) = learnt(&mut texts);
    assert_eq!(text, "is a machine");
    assert!(n < all - 2);
    assert_eq!(learnt(&mut texts).0, " is the machine");
    assert_eq!(learnt(&mut texts).0, "the ship");
    assert!(texts.read().unwrap().is_none());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_line_that_is_no_sample_is_an_error_with_its_file_and_line() {
    let tokenizer = Tokenizer::open(&fixture("llama")).unwrap();
    let lines = [
        (r#"{"text": "#, "no JSON"),
        (r#"{"words": "a"}"#, "none of text"),
        (r#"{"text": 3}"#, "text must be a string"),
        (r#"{"prompt": "a"}"#, "no completion"),
        (r#"{"text": "a", "prompt": "b", "completion": "c"}"#, "more than one"),
        (r#"{"messages": [{"content": "a"}]}"#, "role"),
        (r#"{"messages": [{"role": "pirate", "content": "a"}]}"#, "a role of pirate is not known"),
        (r#"{"messages": [{"role": "user", "content": "a"}]}"#, "nothing in it to learn"),
        (r#"{"prompt": "a", "completion": ""}"#, ""),
    ];
    let all: Vec<&str> = std::iter::once("").chain(lines.iter().map(|(line, _)| *line)).collect();
    let path = file("wrong", &all);
    let mut texts = Texts::open(&path, &tokenizer, tokenizer.eos, 288).unwrap();
    for (i, (line, word)) in lines.iter().enumerate().take(8) {
        let error = texts.read().unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(&format!("line {}", i + 2)), "{line}: {error}");
        assert!(error.contains("plimsoll-texts-wrong"), "{error}");
    }
    // An empty completion still teaches where to end.
    assert!(texts.read().unwrap().is_some());
    let mut few = Texts::open(&path, &tokenizer, None, 3).unwrap();
    let last = (0..9).map(|_| few.read()).last().unwrap().unwrap_err().to_string();
    assert!(last.contains("outside the model's vocabulary of 3") || last.contains("nothing"), "{last}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_text_that_cannot_be_tokenised_is_an_error_with_its_file_and_line() {
    let scratch = plimsoll_testing::Scratch::new("untokenisable");
    // Words that are known, and nothing for those that are not.
    let words = r#"{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": {"type": "WordLevel", "vocab": {"ship": 0, "the": 1}, "unk_token": "[UNK]"}}"#;
    std::fs::write(scratch.path("tokenizer.json"), words).unwrap();
    let tokenizer = Tokenizer::open(scratch.folder()).unwrap();
    let path = file(
        "untokenisable",
        &[r#"{"text": "the ship"}"#, r#"{"text": "the whale"}"#, r#"{"text": "ship the"}"#],
    );
    let mut texts = Texts::open(&path, &tokenizer, None, 2).unwrap();
    assert!(texts.read().unwrap().is_some());
    let error = texts.read().unwrap_err().to_string();
    assert!(error.contains("line 2") && error.contains("cannot be tokenised"), "{error}");
    assert!(texts.read().unwrap().is_some(), "the next line can be read");
    std::fs::remove_file(path).unwrap();
}
