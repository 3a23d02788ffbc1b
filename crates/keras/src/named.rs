//! Turns a class or function that a configuration names into its name and settings, if it is Keras's own.
//!
//! Keras stores `{"module": "keras.losses", "class_name": "Huber", "config": {…}, "registered_name": null}`. A user's own class has
//! another module, or none and a registered name (`My>Huber`): whatever it is called, its code is not in the file.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::settings::Settings;

static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// A class with its settings, or a function, of Keras.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Named<'a> {
    /// Its name as stored.
    pub name: &'a str,
    config: &'a Map<String, Value>,
    /// Named by a word alone.
    pub is_word: bool,
}

impl<'a> Named<'a> {
    /// Reads a word, a function or a class; `place` is what it is for.
    ///
    /// # Errors
    /// It is a user's own, or carries code, or is none of the three.
    pub(crate) fn read(value: &'a Value, place: &str) -> Result<Named<'a>> {
        let plain = |name: &'a str| Named { name, config: &EMPTY, is_word: false };
        match value {
            Value::String(word) => {
                own(word, None, place)?;
                Ok(Named { is_word: true, ..plain(word) })
            }
            Value::Object(map) => {
                let text = |key: &str| map.get(key).and_then(Value::as_str);
                let class = text("class_name").unwrap_or_default();
                if class == "__lambda__" {
                    let why = "which carries Python code; code in a file is never run";
                    return Err(Error::unsupported(place, "lambda", why));
                }
                // A function is stored with its name as the configuration, a class with its settings.
                if let Some(name) = text("config") {
                    own(name, text("registered_name"), place)?;
                    return Ok(plain(name));
                }
                is_kerass(class, text("module"), text("registered_name"))
                    .then_some(())
                    .ok_or_else(|| refusal(place, text("registered_name").unwrap_or(class)))?;
                Ok(Named {
                    config: map.get("config").and_then(Value::as_object).unwrap_or(&EMPTY),
                    ..plain(class)
                })
            }
            _ => Err(Error::config(place, "it is neither a name nor a class")),
        }
    }

    /// The name without underscores, in small letters: Keras knows classes and functions by both spellings.
    pub(crate) fn folded(&self) -> String {
        self.name.replace('_', "").to_lowercase()
    }

    pub(crate) fn settings<'b>(&'b self, place: &'b str) -> Settings<'b> {
        Settings::new(place, self.name, self.config)
    }
}

/// Functions of Keras are stored by name alone, as are a user's that were not registered: Keras itself looks those up among
/// its own. A registered one says so.
fn own(name: &str, registered: Option<&str>, place: &str) -> Result<()> {
    match [Some(name), registered].into_iter().flatten().find(|name| name.contains('>')) {
        Some(registered) => Err(refusal(place, registered)),
        None => Ok(()),
    }
}

fn refusal(place: &str, class: &str) -> Error {
    Error::unsupported(
        place,
        class,
        "a class or function of the user's own, whose code is not in the file; put one of Keras's own in its place",
    )
}

/// Whether a class is Keras's own, by what is stored with it.
pub(crate) fn is_kerass(class: &str, module: Option<&str>, registered: Option<&str>) -> bool {
    if class.contains('>') {
        return false;
    }
    match module {
        Some(module) => ["keras", "tf_keras"].contains(&module.split('.').next().unwrap_or_default()),
        // Old files name neither.
        None => registered.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_functions_and_classes_have_their_names_and_settings() {
        let function = json!({"module": "builtins", "class_name": "function", "config": "mse", "registered_name": "function"});
        let class = json!({"module": "keras.losses", "class_name": "Huber", "config": {"delta": 2}, "registered_name": null});
        let old = json!({"class_name": "Huber", "config": {"delta": 2}});
        assert_eq!(Named::read(&json!("mse"), "x").unwrap().name, "mse");
        assert_eq!(Named::read(&function, "x").unwrap().folded(), "mse");
        for class in [class, old] {
            let named = Named::read(&class, "x").unwrap();
            assert_eq!((named.name, named.settings("x").number("delta").unwrap()), ("Huber", 2.0));
        }
    }

    #[test]
    fn what_is_a_users_own_is_refused_by_name() {
        for value in [
            json!({"module": null, "class_name": "Huber", "config": {}, "registered_name": "My>Huber"}),
            json!({"module": null, "class_name": "Huber", "config": {}, "registered_name": "Huber"}),
            json!({"module": "mine.losses", "class_name": "Huber", "config": {}, "registered_name": "Huber"}),
            json!({"module": "keras_hub.losses", "class_name": "Huber", "config": {}, "registered_name": "x>Huber"}),
            json!({"class_name": "My>Huber", "config": {}}),
            json!({"module": "builtins", "class_name": "function", "config": "Huber", "registered_name": "My>Huber"}),
            json!({"module": "builtins", "class_name": "function", "config": "My>Huber", "registered_name": "function"}),
            json!("My>Huber"),
        ] {
            let error = Named::read(&value, "the loss").unwrap_err().to_string();
            assert!(
                error.contains("the loss") && error.contains("Huber") && error.contains("user's own"),
                "{error}"
            );
        }
        let code = json!({"class_name": "__lambda__", "config": {"value": "4wEA"}});
        assert!(Named::read(&code, "the loss").unwrap_err().to_string().contains("never run"));
    }
}
