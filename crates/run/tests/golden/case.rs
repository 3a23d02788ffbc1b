//! Turns a golden file into cases. What the fields mean is said in `make.py`, which writes them.

use std::path::Path;

use plimsoll_graph::{DType, Padding, Shape, Type};
use serde::Deserialize;
use serde_json::{Map, Value};

/// An op, its inputs, and what PyTorch makes of them.
#[derive(Deserialize)]
pub struct Case {
    pub op: String,
    pub name: String,
    pub attrs: Attrs,
    pub inputs: Vec<Input>,
    /// The seeds of the first derivatives, where those are what is differentiated.
    #[serde(default)]
    pub inner: Vec<Golden>,
    pub outputs: Vec<Golden>,
    /// One for each output, `None` for one that has no gradient; empty where no gradient is asked for.
    #[serde(default)]
    pub seeds: Vec<Option<Golden>>,
    /// Of the inputs that ask for one.
    #[serde(default)]
    pub gradients: Vec<Golden>,
    /// The float types of the case, where not all.
    #[serde(default)]
    dtypes: Vec<String>,
    /// Whether float results must be PyTorch's to the last bit.
    #[serde(default)]
    pub exact: bool,
}

/// An input with the kind of its element type.
#[derive(Deserialize)]
pub struct Input {
    kind: String,
    pub grad: bool,
    pub array: Golden,
}

/// An array as it stands in the file.
#[derive(Deserialize)]
pub struct Golden {
    shape: Vec<usize>,
    data: Vec<Number>,
}

/// A number; those that JSON lacks are spelled out.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "Value")]
struct Number(f64);

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Number, String> {
        let number = value.as_f64().or_else(|| value.as_str().and_then(|s| s.parse().ok()));
        number.map(Number).ok_or_else(|| format!("{value} is not a number"))
    }
}

impl Golden {
    pub fn shape(&self) -> Shape {
        Shape::from(&self.shape[..])
    }

    pub fn data(&self) -> Vec<f64> {
        self.data.iter().map(|x| x.0).collect()
    }
}

impl Input {
    /// The input's type when floats are of `dtype`.
    pub fn ty(&self, dtype: DType) -> Type {
        let dtype = match &self.kind[..] {
            "float" => dtype,
            "wide" => dtype.accumulator(),
            other => named(other),
        };
        Type::new(dtype, self.array.shape())
    }
}

impl Case {
    /// The cases of a file beside this one.
    pub fn read(file: &str) -> Vec<Case> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file).with_extension("json");
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The float types in which the case is run: one is enough where nothing is a float.
    pub fn dtypes(&self) -> Vec<DType> {
        let mut dtypes: Vec<DType> = DType::FLOATS.into();
        if !self.dtypes.is_empty() {
            dtypes.retain(|d| self.dtypes.iter().any(|name| name == d.name()));
        }
        let floats = self.inputs.iter().any(|x| matches!(&x.kind[..], "float" | "wide"));
        let result = self.attrs.text("dtype") == Some("float");
        dtypes.truncate(if floats || result { 4 } else { 1 });
        dtypes
    }
}

/// The element type of a name.
fn named(name: &str) -> DType {
    DType::ALL
        .into_iter()
        .find(|d| d.name() == name)
        .unwrap_or_else(|| panic!("no element type is called {name}"))
}

/// The attributes of an op, by name.
#[derive(Deserialize)]
pub struct Attrs(Map<String, Value>);

impl Attrs {
    fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or_else(|| panic!("the attribute {name} is missing"))
    }

    /// An attribute of any type that JSON can hold.
    pub fn get<'a, T: Deserialize<'a>>(&'a self, name: &str) -> T {
        T::deserialize(self.value(name)).unwrap_or_else(|e| panic!("the attribute {name}: {e}"))
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    pub fn scalar(&self) -> f64 {
        self.get("s")
    }

    /// An optional number.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    /// An element type, or that of the case's floats.
    pub fn dtype(&self, name: &str, float: DType) -> DType {
        match self.text(name) {
            Some("float") => float,
            Some(other) => named(other),
            None => panic!("the attribute {name} is missing"),
        }
    }

    /// The padding of a convolution or pooling.
    pub fn padding<const AXES: usize>(&self) -> Padding<AXES> {
        match self.text("pad") {
            Some("valid") => Padding::Valid,
            Some("same") => Padding::Same,
            _ => {
                let pads: Vec<(usize, usize)> = self.get("pad");
                Padding::Explicit(pads.try_into().unwrap_or_else(|pads| panic!("{pads:?} for {AXES} axes")))
            }
        }
    }
}
