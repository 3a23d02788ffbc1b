//! Turns class names into the names Keras stores weights under, and sorts paths as people count.

use std::cmp::Ordering;
use std::collections::HashMap;

/// `Conv2D` → `conv2d`, `ReLU` → `re_lu`, `MultiHeadAttention` → `multi_head_attention`.
///
/// Three substitutions in this order, as in Keras: everything but word characters goes; a capital followed by small letters
/// is set apart from what precedes it; a small letter is set apart from a capital that follows it.
pub(super) fn snake_case(class: &str) -> String {
    let word: Vec<char> = class.chars().filter(|c| c.is_alphanumeric() || *c == '_').collect();
    let mut apart = Vec::new();
    let mut i = 0;
    while i < word.len() {
        let small = |i: usize| word.get(i).is_some_and(char::is_ascii_lowercase);
        apart.push(word[i]);
        i += 1;
        if word.get(i).is_some_and(char::is_ascii_uppercase) && small(i + 1) {
            apart.extend(['_', word[i]]);
            i += 1;
            // The letters matched here are used up: none of them can be what precedes the next capital.
            while small(i) {
                apart.push(word[i]);
                i += 1;
            }
        }
    }
    let mut snake = String::new();
    for (i, c) in apart.iter().enumerate() {
        if i > 0 && c.is_ascii_uppercase() && apart[i - 1].is_ascii_lowercase() {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

/// Hands out names that are unique in one list: `dense`, `dense_1`, `dense_2`.
#[derive(Default)]
pub(super) struct Counter(HashMap<String, u64>);

impl Counter {
    pub(super) fn unique(&mut self, name: String) -> String {
        match self.0.get_mut(&name) {
            Some(n) => {
                *n += 1;
                format!("{name}_{n}")
            }
            None => {
                self.0.insert(name.clone(), 0);
                name
            }
        }
    }
}

/// Compares paths piece by piece, pieces that are numbers as numbers: `vars/9` comes before `vars/10`.
pub(super) fn natural(a: &str, b: &str) -> Ordering {
    let mut pieces = a.split('/').zip(b.split('/'));
    let different = pieces.find_map(|(a, b)| {
        let order = match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            // Numbers before words, always: else three pieces could each come before the next.
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        (order != Ordering::Equal).then_some(order)
    });
    // Pieces that are equal as numbers may still differ as text.
    different.unwrap_or_else(|| a.split('/').count().cmp(&b.split('/').count()).then_with(|| a.cmp(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_names_become_what_keras_makes_of_them() {
        // Printed by keras.src.utils.naming.to_snake_case.
        for (class, snake) in [
            ("Dense", "dense"),
            ("Conv2D", "conv2d"),
            ("Conv2DTranspose", "conv2d_transpose"),
            ("DepthwiseConv2D", "depthwise_conv2d"),
            ("BatchNormalization", "batch_normalization"),
            ("GlobalAveragePooling2D", "global_average_pooling2d"),
            ("ReLU", "re_lu"),
            ("PReLU", "p_re_lu"),
            ("LeakyReLU", "leaky_re_lu"),
            ("LSTM", "lstm"),
            ("GRUCell", "gru_cell"),
            ("ConvLSTM2D", "conv_lstm2d"),
            ("RMSNormalization", "rms_normalization"),
            ("MultiHeadAttention", "multi_head_attention"),
            ("TFSMLayer", "tfsm_layer"),
            ("ABcDe", "a_bc_de"),
            ("My Layer>X", "my_layer_x"),
            ("_Hidden", "__hidden"),
        ] {
            assert_eq!(snake_case(class), snake, "{class}");
        }
    }

    #[test]
    fn numbers_in_paths_sort_as_numbers() {
        let mut paths = ["a/vars/10", "a/vars/9", "a/vars", "b", "a/vars/09", "a_1/x"];
        paths.sort_by(|a, b| natural(a, b));
        assert_eq!(paths, ["a/vars", "a/vars/09", "a/vars/9", "a/vars/10", "a_1/x", "b"]);
    }

    #[test]
    fn repeated_names_are_counted_from_the_second_on() {
        let mut counter = Counter::default();
        let names: Vec<String> = ["a", "b", "a", "a"].map(|name| counter.unique(name.to_string())).to_vec();
        assert_eq!(names, ["a", "b", "a_1", "a_2"]);
    }
}
