//! Turns conversations into texts by a model's own template, and says which parts of the text are the model's.

use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::read_small;
use crate::error::{Error, Result};
use crate::tokenizer::word;

/// Bytes of a template at most.
const LARGEST: u64 = 4 << 20;
/// Steps that a template may take: those of published models take a few thousand for a conversation.
const FUEL: u64 = 50_000_000;
const NAME: &str = "chat_template";

/// A message of a conversation. What else a message has (`tool_calls`, `name`) is handed to the template as it is.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Message {
    /// Who says it.
    pub role: String,
    /// Everything else: `content`, as a rule.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, Value>,
}

/// A model's template for conversations.
pub struct Template {
    environment: Environment<'static>,
    path: PathBuf,
    tokens: Vec<(&'static str, String)>,
}

/// A conversation as a text, with the bytes of it that are the model's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The model's parts of it.
    pub own: Vec<(usize, usize)>,
}

impl Template {
    /// The template of a folder: a file of its own, or a field of `tokenizer_config.json`.
    pub(crate) fn find(folder: &Path, settings: &Value) -> Result<Option<Template>> {
        let file = folder.join("chat_template.jinja");
        let (source, path) = if file.is_file() {
            let bytes = read_small(&file, LARGEST)?;
            let text = String::from_utf8(bytes).map_err(|_| Error::file(&file, "it is no text"))?;
            (text, file)
        } else {
            let path = folder.join("tokenizer_config.json");
            let source = match &settings["chat_template"] {
                Value::Null => return Ok(None),
                Value::String(text) => text.clone(),
                // Several by name.
                Value::Array(list) => {
                    let named = list.iter().find(|entry| entry["name"] == "default");
                    match named.and_then(|entry| entry["template"].as_str()) {
                        Some(text) => text.into(),
                        None => {
                            return Err(Error::file(
                                &path,
                                "chat_template names several, and none is \"default\"",
                            ));
                        }
                    }
                }
                _ => return Err(Error::file(&path, "chat_template must be a string")),
            };
            (source, path)
        };
        let tokens = ["bos_token", "eos_token", "pad_token", "unk_token"];
        let tokens = tokens.iter().filter_map(|name| Some((*name, word(&settings[*name])?))).collect();
        Template::new(source, path, tokens).map(Some)
    }

    fn new(source: String, path: PathBuf, tokens: Vec<(&'static str, String)>) -> Result<Template> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| Error::file(&path, e.to_string()))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        let read = environment.add_template_owned(NAME, without_generation(&source));
        read.map_err(|e| Error::file(&path, format!("its chat template cannot be read: {}", cause(&e))))?;
        Ok(Template { environment, path, tokens })
    }

    /// A conversation as a text; with what stands before an answer, where one is to follow.
    pub fn render(&self, messages: &[Message], is_prompt: bool) -> Result<String> {
        let failed =
            |e: minijinja::Error| Error::file(&self.path, format!("its chat template fails: {}", cause(&e)));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        // What transformers always gives a template, so that `is none` is true of it.
        let none = Jinja::from(());
        let mut all: Vec<(&str, Jinja)> =
            vec![("messages", Jinja::from(Serde(messages))), ("add_generation_prompt", is_prompt.into())];
        all.extend([("tools", none.clone()), ("documents", none)]);
        all.extend(self.tokens.iter().map(|(name, token)| (*name, Jinja::from(token.as_str()))));
        template.render(Jinja::from_pairs(all)).map_err(failed)
    }

    /// A conversation as a text, with the parts that the assistant says.
    ///
    /// What it says is what its message adds to the conversation before it, behind what stands before an answer.
    ///
    /// # Errors
    /// The template fails, or gives the beginning of a conversation otherwise than as the beginning of the whole.
    pub fn render_whole(&self, messages: &[Message]) -> Result<Rendered> {
        let text = self.render(messages, false)?;
        let mut own = Vec::new();
        for i in (0..messages.len()).filter(|i| messages[*i].role == "assistant") {
            let before = self.render(&messages[..i], true)?;
            let after = self.render(&messages[..=i], false)?;
            // Where an answer follows, some templates close it only before the next message.
            let end = common(&after, &text);
            if !text.starts_with(&before)
                || end < before.len()
                || (end < after.len() && !after[end..].trim().is_empty())
            {
                let why = format!(
                    "its chat template gives the first {} messages otherwise by themselves than within all {}, so that \
                     what is the assistant's is not known",
                    i + 1,
                    messages.len()
                );
                return Err(Error::file(&self.path, why));
            }
            own.push((before.len(), end));
        }
        Ok(Rendered { text, own })
    }
}

/// How many bytes two texts have in common at their beginning, in whole letters.
fn common(a: &str, b: &str) -> usize {
    let same = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    same.map(|(letter, _)| letter.len_utf8()).sum()
}

/// `{% generation %}` marks what a model says, for tools that mask by it; here that is found otherwise.
fn without_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let Some(end) = rest[at..].find("%}").map(|end| at + end + 2) else { break };
        let tag = &rest[at..end];
        out.push_str(&rest[..at]);
        match tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\n', '\t']) {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[end..];
    }
    out + rest
}

/// What a template's error says, in one line.
fn cause(error: &minijinja::Error) -> String {
    let line = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    let inner = std::error::Error::source(error).map(|e| format!(": {e}")).unwrap_or_default();
    format!("{}{inner}{line}", error.detail().map_or(error.kind().to_string(), String::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Result<Template> {
        Template::new(source.into(), "t".into(), vec![("eos_token", "</s>".into())])
    }

    fn chat(parts: &[(&str, &str)]) -> Vec<Message> {
        let of = |(role, content): &(&str, &str)| serde_json::json!({"role": role, "content": content});
        parts.iter().map(|part| serde_json::from_value(of(part)).unwrap()).collect()
    }

    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m['content'].strip() }}{% if m.role == 'assistant' %}\
                         {{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";

    #[test]
    fn what_the_assistant_says_is_found_in_every_turn() {
        let rendered = template(PLAIN)
            .unwrap()
            .render_whole(&chat(&[("user", "hi"), ("assistant", "yo "), ("user", "é?"), ("assistant", "ok")]))
            .unwrap();
        assert_eq!(rendered.text, "[user]hi[assistant]yo</s>[user]é?[assistant]ok</s>");
        let own: Vec<&str> = rendered.own.iter().map(|(from, to)| &rendered.text[*from..*to]).collect();
        assert_eq!(own, ["yo</s>", "ok</s>"]);
    }

    #[test]
    fn templates_that_fail_say_why() {
        let text = template("{{ raise_exception('roles must alternate') }}")
            .unwrap()
            .render(&[], false)
            .unwrap_err();
        assert!(text.to_string().contains("roles must alternate"), "{text}");
        assert!(template("{% for %}").err().unwrap().to_string().contains("cannot be read"));
        let endless =
            template("{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}");
        assert!(endless.unwrap().render(&[], false).is_err());
        // A template that rewrites what was said before.
        let odd =
            template("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}").unwrap();
        assert!(
            odd.render_whole(&chat(&[("assistant", "a"), ("user", "b")]))
                .unwrap_err()
                .to_string()
                .contains("otherwise")
        );
    }

    #[test]
    fn marks_of_generation_change_nothing() {
        let marked = PLAIN.replace(
            "{{ m['content'].strip() }}",
            "{% generation %}{{ m['content'].strip() }}{%- endgeneration -%}",
        );
        let of = |source: &str| template(source).unwrap().render(&chat(&[("assistant", "x")]), true).unwrap();
        assert_eq!(of(&marked), of(PLAIN));
    }
}
