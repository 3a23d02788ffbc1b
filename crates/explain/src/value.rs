//! Values of a foreign file as plain data in one flat table, within a byte budget.
//!
//! Nodes refer to each other by number, so a file may share and even nest values in themselves without costing anything, and
//! nothing here recurses: neither reading nor dropping.

/// The number of a value.
pub(crate) type Id = u32;

/// One value. Tuples and sets are lists; the contents of byte strings are of no interest.
#[derive(Debug)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits, or bytes: there, and of no use.
    Opaque,
    Float(f64),
    Text(Box<str>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
}

/// There is no room for more.
#[derive(Debug)]
pub(crate) struct Full;

/// How many entries of a dictionary are looked through; the ones that matter have a dozen.
const KEYS: usize = 64;

/// A table of values.
#[derive(Debug)]
pub(crate) struct Values {
    nodes: Vec<Node>,
    spent: usize,
    limit: usize,
}

impl Values {
    pub fn new(limit: usize) -> Values {
        Values { nodes: Vec::new(), spent: 0, limit }
    }

    /// Counts bytes that a reader keeps beside the table.
    pub fn spend(&mut self, bytes: usize) -> Result<(), Full> {
        self.spent = self.spent.saturating_add(bytes);
        if self.spent > self.limit { Err(Full) } else { Ok(()) }
    }

    /// Whether so many bytes more may be kept.
    pub fn has_room(&self, bytes: u64) -> bool {
        bytes <= (self.limit - self.spent.min(self.limit)) as u64
    }

    pub fn add(&mut self, node: Node) -> Result<Id, Full> {
        let payload = match &node {
            Node::Text(text) => text.len() + 16,
            Node::List(items) => 8 * items.len() + 16,
            Node::Dict(items) => 16 * items.len() + 16,
            _ => 0,
        };
        // The table may hold twice what it needs while it grows.
        self.spend(payload + 2 * size_of::<Node>())?;
        let id = Id::try_from(self.nodes.len()).map_err(|_| Full)?;
        self.nodes.push(node);
        Ok(id)
    }

    pub fn node(&self, id: Id) -> &Node {
        self.nodes.get(id as usize).unwrap_or(&Node::None)
    }

    /// Appends to a list; false where it is none.
    pub fn append(&mut self, list: Id, item: Id) -> Result<bool, Full> {
        self.spend(8)?;
        match self.nodes.get_mut(list as usize) {
            Some(Node::List(items)) => {
                items.push(item);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Adds an entry to a dictionary; false where it is none.
    pub fn insert(&mut self, dict: Id, key: Id, value: Id) -> Result<bool, Full> {
        self.spend(16)?;
        match self.nodes.get_mut(dict as usize) {
            Some(Node::Dict(items)) => {
                items.push((key, value));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// The value of a text key.
    pub fn get(&self, dict: Id, key: &str) -> Option<Id> {
        let Node::Dict(items) = self.node(dict) else { return None };
        items.iter().take(KEYS).rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }

    pub fn text(&self, id: Id) -> Option<&str> {
        match self.node(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn list(&self, id: Id) -> Option<&[Id]> {
        match self.node(id) {
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// A non-negative integer.
    pub fn integer(&self, id: Id) -> Option<u64> {
        match self.node(id) {
            Node::Int(value) => u64::try_from(*value).ok(),
            Node::Float(value) if *value >= 0.0 && *value < 9e18 => Some(*value as u64),
            _ => None,
        }
    }

    /// A text entry of a dictionary.
    pub fn text_of(&self, dict: Id, key: &str) -> Option<&str> {
        self.text(self.get(dict, key)?)
    }

    /// A list entry of a dictionary; an absent one is empty.
    pub fn list_of(&self, dict: Id, key: &str) -> &[Id] {
        self.get(dict, key).and_then(|id| self.list(id)).unwrap_or(&[])
    }

    /// A number entry of a dictionary.
    pub fn integer_of(&self, dict: Id, key: &str) -> Option<u64> {
        self.integer(self.get(dict, key)?)
    }
}
