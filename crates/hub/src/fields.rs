//! Turns a JSON object into values by name, and refuses what nobody asked for.

use std::collections::BTreeMap;

use serde_json::Value;

/// The fields of an object, each taken at most once. What is left in the end is refused by name.
#[derive(Debug)]
pub(crate) struct Fields {
    left: BTreeMap<String, Value>,
    /// What stands before a field's name in messages: `rope_scaling.`, say.
    within: String,
}

impl Fields {
    /// The fields of an object; of null, none.
    pub(crate) fn new(value: Value, within: &str) -> Result<Fields, String> {
        match value {
            Value::Object(map) => Ok(Fields { left: map.into_iter().collect(), within: within.into() }),
            Value::Null => Ok(Fields { left: BTreeMap::new(), within: within.into() }),
            other => Err(format!("{} must be an object, not {other}", within.trim_end_matches('.'))),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.left.get(name).is_some_and(|value| !value.is_null())
    }

    /// Whether a field is there and says null.
    pub(crate) fn is_null(&self, name: &str) -> bool {
        self.left.get(name).is_some_and(Value::is_null)
    }

    pub(crate) fn peek(&self, name: &str) -> Option<&Value> {
        self.left.get(name).filter(|value| !value.is_null())
    }

    /// A field as it is; null counts as absent.
    pub(crate) fn value(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, wanted: &str, found: &Value) -> String {
        format!("{}{name} must be {wanted}, not {found}", self.within)
    }

    pub(crate) fn size(&mut self, name: &str) -> Result<Option<usize>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        // A dimension beyond this is a lie; it would only overflow later.
        let size = value.as_u64().filter(|n| *n <= 1 << 32).map(|n| n as usize);
        size.map(Some).ok_or_else(|| self.wrong(name, "a whole number", &value))
    }

    pub(crate) fn positive(&mut self, name: &str) -> Result<usize, String> {
        match self.size(name)? {
            Some(0) => Err(format!("{}{name} is 0", self.within)),
            Some(n) => Ok(n),
            None => Err(format!("{}{name} is missing", self.within)),
        }
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.as_f64().filter(|x| x.is_finite());
        number.map(Some).ok_or_else(|| self.wrong(name, "a number", &value))
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(name, "true or false", &value))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(|text| Some(text.to_string())).ok_or_else(|| self.wrong(name, "a string", &value))
    }

    pub(crate) fn numbers(&mut self, name: &str) -> Result<Option<Vec<f64>>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let all =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        all.map(Some).ok_or_else(|| self.wrong(name, "a list of numbers", &value))
    }

    pub(crate) fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, String> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let texts = value.as_array().and_then(|list| {
            list.iter().map(|text| text.as_str().map(String::from)).collect::<Option<Vec<String>>>()
        });
        texts.map(Some).ok_or_else(|| self.wrong(name, "a list of strings", &value))
    }

    /// Token ids: one, a list, or none.
    pub(crate) fn tokens(&mut self, name: &str) -> Result<Vec<u32>, String> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let one = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        let all = match &value {
            Value::Array(list) => list.iter().map(one).collect(),
            value => one(value).map(|token| vec![token]),
        };
        all.ok_or_else(|| self.wrong(name, "a token's number or a list of them", &value))
    }

    /// A flag that must not be set: what it asks for is not known here.
    pub(crate) fn must_not(&mut self, name: &str) -> Result<(), String> {
        match self.flag(name)? {
            Some(true) => Err(format!("it asks for {}{name}, which is not known here", self.within)),
            _ => Ok(()),
        }
    }

    /// Lets go of fields that change nothing of what is computed.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.left.remove(*name);
        }
    }

    /// Lets go of fields that ask for nothing: false, empty lists and objects.
    pub(crate) fn drop_empty(&mut self) {
        self.left.retain(|_, value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        });
    }

    /// Refuses what is left. Null is no request.
    pub(crate) fn finish(self) -> Result<(), String> {
        let left: Vec<String> = self
            .left
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| format!("{}{name} = {}", self.within, shortened(value)))
            .collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("it asks for what is not known here: {}", left.join(", "))),
        }
    }
}

/// A value for a message.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
