//! Turns a layer's configuration into checked numbers, names and shapes.
//!
//! A number from a file is bounded before anything is sized by it: a file that asks for 10¹⁸ units is refused where it is read.
//! Settings that nobody asked for are refused by name in the end: what is not known cannot be obeyed.

use std::cell::RefCell;
use std::collections::HashSet;

use plimsoll_graph::Padding;
use plimsoll_nn::Init;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::layers::Activation;

/// The largest number of units, channels or rows that a layer may ask for.
const MOST_UNITS: u64 = 1 << 28;
/// The largest window, stride or padding.
const MOST_EXTENT: u64 = 1 << 16;

/// Settings of layers that are read elsewhere, or that change nothing in what a layer computes.
const IDLE_IN_LAYERS: [&str; 9] = [
    "name",
    "trainable",
    "dtype",
    // Shapes, which are found anew.
    "batch_input_shape",
    "batch_shape",
    "input_dtype",
    // Random numbers are our own.
    "seed",
    // Without a rank, of which it is the scale.
    "lora_alpha",
    "autocast",
];
/// The longest list of numbers that is no shape.
const MOST_NUMBERS: usize = 1 << 16;

/// One layer's configuration with its place in the model, which every error names.
pub(crate) struct Settings<'a> {
    pub place: &'a str,
    pub class: &'a str,
    map: &'a Map<String, Value>,
    /// The settings that were asked for.
    read: RefCell<HashSet<String>>,
}

impl<'a> Settings<'a> {
    pub(crate) fn new(place: &'a str, class: &'a str, map: &'a Map<String, Value>) -> Settings<'a> {
        Settings { place, class, map, read: RefCell::default() }
    }

    /// An error about one of the settings.
    pub(crate) fn wrong(&self, key: &str, why: &str) -> Error {
        let value = self.get(key);
        let mut text = value.to_string();
        if text.len() > 80 {
            text = text.chars().take(80).collect::<String>() + " …";
        }
        Error::config(self.place, format!("{key} of this {} is {text}; {why}", self.class))
    }

    /// An error that says that the layer as a whole is not for us.
    pub(crate) fn unsupported(&self, why: impl Into<String>) -> Error {
        Error::unsupported(self.place, self.class, why)
    }

    /// A setting as stored; null where it is not there.
    pub(crate) fn get(&self, key: &str) -> &'a Value {
        self.read.borrow_mut().insert(key.to_string());
        self.map.get(key).unwrap_or(&Value::Null)
    }

    /// Whether a setting is there, be it null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.get(key).is_null()
    }

    fn bounded(&self, key: &str, value: &Value, most: u64) -> Result<usize> {
        match value.as_u64() {
            Some(n) if n <= most => Ok(n as usize),
            Some(_) => Err(self.wrong(key, &format!("more than {most} is not taken"))),
            None => Err(self.wrong(key, "it should be a whole number that is not negative")),
        }
    }

    /// A number of units that must be there and not be zero.
    pub(crate) fn units(&self, key: &str) -> Result<usize> {
        match self.bounded(key, self.get(key), MOST_UNITS)? {
            0 => Err(self.wrong(key, "it should not be zero")),
            n => Ok(n),
        }
    }

    /// A number of units with a value for where it is not there.
    pub(crate) fn units_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.is_null(key) { Ok(default) } else { self.units(key) }
    }

    pub(crate) fn number(&self, key: &str) -> Result<f64> {
        match self.get(key).as_f64() {
            Some(x) if x.is_finite() => Ok(x),
            _ => Err(self.wrong(key, "it should be a number")),
        }
    }

    pub(crate) fn number_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            Value::Null => Ok(default),
            // Keras stores numbers that NumPy made as objects.
            Value::Object(map) => map
                .get("config")
                .and_then(|c| c.get("value"))
                .and_then(Value::as_f64)
                .filter(|x| x.is_finite())
                .ok_or_else(|| self.wrong(key, "it should be a number")),
            _ => self.number(key),
        }
    }

    /// A number above 0.
    pub(crate) fn positive(&self, key: &str) -> Result<f64> {
        match self.number(key)? {
            x if x > 0.0 => Ok(x),
            _ => Err(self.wrong(key, "it should be more than 0")),
        }
    }

    /// A number that is not below another, with a value for where it is not there.
    pub(crate) fn at_least(&self, key: &str, default: f64, least: f64) -> Result<f64> {
        match self.number_or(key, default)? {
            x if x >= least => Ok(x),
            _ => Err(self.wrong(key, &format!("it should be {least} or more"))),
        }
    }

    /// A list of numbers.
    pub(crate) fn list(&self, key: &str) -> Result<Vec<f64>> {
        match self.get(key) {
            Value::Array(_) => self.numbers(key, MOST_NUMBERS),
            _ => Err(self.wrong(key, "it should be a list of numbers")),
        }
    }

    /// A share: at least 0 and below 1.
    pub(crate) fn rate(&self, key: &str) -> Result<f64> {
        let rate = self.number_or(key, 0.0)?;
        if (0.0..1.0).contains(&rate) {
            Ok(rate)
        } else {
            Err(self.wrong(key, "it should be in 0 ≤ rate < 1"))
        }
    }

    /// A share with a value for where it is not there.
    pub(crate) fn rate_or(&self, key: &str, default: f64) -> Result<f64> {
        if self.is_null(key) { Ok(default) } else { self.rate(key) }
    }

    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            Value::Null => Ok(default),
            Value::Bool(flag) => Ok(*flag),
            _ => Err(self.wrong(key, "it should be true or false")),
        }
    }

    pub(crate) fn text(&self, key: &str) -> Result<&'a str> {
        self.get(key).as_str().ok_or_else(|| self.wrong(key, "it should be a word"))
    }

    pub(crate) fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str> {
        if self.is_null(key) { Ok(default) } else { self.text(key) }
    }

    /// A list of whole numbers; a single number is a list of one.
    pub(crate) fn integers(&self, key: &str) -> Result<Vec<i64>> {
        let one = |value: &Value| {
            value
                .as_i64()
                .filter(|n| n.unsigned_abs() <= MOST_UNITS)
                .ok_or_else(|| self.wrong(key, "it should be a list of whole numbers"))
        };
        match self.get(key) {
            Value::Array(list) if list.len() <= 16 => list.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }

    /// A list of numbers, at most `most`; a single number is a list of one.
    pub(crate) fn numbers(&self, key: &str, most: usize) -> Result<Vec<f64>> {
        let one = |value: &Value| {
            value.as_f64().filter(|x| x.is_finite()).ok_or_else(|| self.wrong(key, "it should be numbers"))
        };
        match self.get(key) {
            Value::Array(list) if list.len() <= most => list.iter().map(one).collect(),
            value => Ok(vec![one(value)?]),
        }
    }

    /// The extents of a window along `AXES` axes: a list, or one number for all. Null is the default.
    pub(crate) fn extents<const AXES: usize>(&self, key: &str, default: usize) -> Result<[usize; AXES]> {
        let extent = |value: &Value| match self.bounded(key, value, MOST_EXTENT)? {
            0 => Err(self.wrong(key, "it should not be zero")),
            n => Ok(n),
        };
        match self.get(key) {
            Value::Null => Ok([default; AXES]),
            Value::Array(list) if list.len() == AXES => {
                let mut extents = [0; AXES];
                for (to, from) in extents.iter_mut().zip(list) {
                    *to = extent(from)?;
                }
                Ok(extents)
            }
            // One axis may come as a list of one around it.
            value if !value.is_array() => Ok([extent(value)?; AXES]),
            _ => Err(self.wrong(key, &format!("it should be {AXES} numbers"))),
        }
    }

    /// Numbers along `AXES` axes that may be 0: a list, or one number for all.
    pub(crate) fn amounts<const AXES: usize>(&self, key: &str) -> Result<[usize; AXES]> {
        match self.get(key) {
            Value::Array(list) if list.len() == AXES => {
                let mut amounts = [0; AXES];
                for (to, from) in amounts.iter_mut().zip(list) {
                    *to = self.bounded(key, from, MOST_EXTENT)?;
                }
                Ok(amounts)
            }
            value => Ok([self.bounded(key, value, MOST_EXTENT)?; AXES]),
        }
    }

    /// Elements before and after each axis: a number, a list of numbers, or a list of pairs.
    pub(crate) fn sides<const AXES: usize>(&self, key: &str) -> Result<[(usize, usize); AXES]> {
        let number = |value: &Value| self.bounded(key, value, MOST_EXTENT);
        let pair = |value: &Value| match value {
            Value::Array(pair) if pair.len() == 2 => Ok((number(&pair[0])?, number(&pair[1])?)),
            value => number(value).map(|n| (n, n)),
        };
        match self.get(key) {
            // Of one axis the pair itself is the list.
            Value::Array(list) if AXES == 1 && list.len() == 2 => {
                Ok([(number(&list[0])?, number(&list[1])?); AXES])
            }
            Value::Array(list) if list.len() == AXES => {
                let mut sides = [(0, 0); AXES];
                for (to, from) in sides.iter_mut().zip(list) {
                    *to = pair(from)?;
                }
                Ok(sides)
            }
            value if !value.is_array() => Ok([pair(value)?; AXES]),
            _ => Err(self.wrong(key, &format!("it should be {AXES} pairs of numbers"))),
        }
    }

    /// `valid` or `same`.
    pub(crate) fn padding<const AXES: usize>(&self) -> Result<Padding<AXES>> {
        match self.text_or("padding", "valid")? {
            "valid" => Ok(Padding::Valid),
            "same" => Ok(Padding::Same),
            _ => Err(self.wrong("padding", "it should be \"valid\" or \"same\"")),
        }
    }

    /// Refuses channels first: our images and sequences have their channels last.
    pub(crate) fn channels_last(&self) -> Result<()> {
        match self.text_or("data_format", "channels_last")? {
            "channels_last" => Ok(()),
            _ => Err(self.wrong(
                "data_format",
                "only channels_last is taken; build the model with that in Keras and move the weights over",
            )),
        }
    }

    pub(crate) fn activation(&self, key: &str) -> Result<Activation> {
        Activation::read(self, key)
    }

    /// A setting that was not asked for, is not one of `idle`, and is not off: null or false.
    pub(crate) fn unread(&self, idle: &[&str]) -> Option<&'a str> {
        let read = self.read.borrow();
        let is_off = |value: &Value| matches!(value, Value::Null | Value::Bool(false));
        let mut left = self.map.iter().filter(|(key, value)| !read.contains(*key) && !is_off(value));
        left.find(|(key, _)| !idle.contains(&key.as_str())).map(|(key, _)| key.as_str())
    }

    /// Refuses settings that nobody asked for. `idle` are those that are known to change nothing.
    pub(crate) fn finish(&self, idle: &[&str]) -> Result<()> {
        match self.unread(idle) {
            None => Ok(()),
            Some(key) => {
                Err(self
                    .wrong(key, "this is not known here, so it cannot be obeyed; save the model without it"))
            }
        }
    }

    /// As [`Settings::finish`], for layers: what every layer may carry, and what only says how weights started, changes nothing.
    pub(crate) fn finish_layer(&self, idle: &[&str]) -> Result<()> {
        for (key, value) in self.map {
            let blocked = key.ends_with("_constraint") || key == "activity_regularizer" || key == "lora_rank";
            if blocked && !value.is_null() && !self.read.borrow().contains(key) {
                return Err(self.wrong(key, "this is not supported; save the model without it"));
            }
        }
        let starts = self.map.keys().filter(|key| key.ends_with("_initializer")).map(String::as_str);
        let all: Vec<&str> = starts.chain(IDLE_IN_LAYERS).chain(idle.iter().copied()).collect();
        self.finish(&all)
    }

    /// How a weight starts, from the initializer named here; Keras's own default where it is another.
    pub(crate) fn init(&self, key: &str, fan_in: usize, fan_out: usize) -> Init {
        let value = self.get(key);
        let name = value.get("class_name").or(Some(value)).and_then(Value::as_str).unwrap_or_default();
        let number = |setting: &str, default: f64| {
            value.get("config").and_then(|c| c.get(setting)).and_then(Value::as_f64).unwrap_or(default)
        };
        match name {
            "Zeros" | "zeros" => Init::Constant(0.0),
            "Ones" | "ones" => Init::Constant(1.0),
            "Constant" | "constant" => Init::Constant(number("value", 0.0)),
            "GlorotNormal" | "glorot_normal" => Init::glorot_normal(fan_in, fan_out),
            "HeNormal" | "he_normal" => Init::he_normal(fan_in),
            "HeUniform" | "he_uniform" => Init::he_uniform(fan_in),
            "LecunNormal" | "lecun_normal" => Init::he_normal(fan_in.saturating_mul(2)),
            "LecunUniform" | "lecun_uniform" => Init::he_uniform(fan_in.saturating_mul(2)),
            "RandomNormal" | "random_normal" => Init::Normal(number("stddev", 0.05)),
            "TruncatedNormal" | "truncated_normal" => Init::TruncatedNormal(number("stddev", 0.05)),
            "RandomUniform" | "random_uniform" | "uniform" => Init::Uniform(number("maxval", 0.05).abs()),
            "OrthogonalInitializer" | "Orthogonal" | "orthogonal" => Init::Orthogonal(number("gain", 1.0)),
            _ => Init::glorot_uniform(fan_in, fan_out),
        }
    }
}
