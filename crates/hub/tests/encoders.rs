//! Every encoder against transformers: logits, losses, gradients of all weights; heads that begin anew; rows of labelled texts.

mod common;

use common::{check_training, fixture, furthest, golden, numbers, tokens};
use plimsoll_graph::TensorOps;
use plimsoll_hub::{
    Encoder, EncoderConfig, Folder, LabelledRows, Packed, Task, TokenLoss, Tokenizer, Unmatched, save_encoder,
};
use plimsoll_nn::{Loss, Model, Net, Param};
use plimsoll_run::Tensor;
use plimsoll_testing::Scratch;
use serde_json::Value;

const TOLERANCE: f64 = 1e-4;
const MODELS: &[&str] = &[
    "bert-words",
    "bert-sequence",
    "bert-tokens",
    "roberta-words",
    "roberta-sequence",
    "roberta-tokens",
    "distilbert-words",
    "distilbert-sequence",
    "distilbert-tokens",
    "vit",
];

struct Loaded {
    model: Encoder,
    params: Vec<Param>,
    values: Vec<Tensor>,
    folder: Folder<EncoderConfig>,
    unmatched: Unmatched,
}

fn loaded(name: &str, task: Option<Task>, labels: Option<Vec<String>>) -> Loaded {
    let path = fixture(name);
    let config = EncoderConfig::open(&path, task, labels).unwrap();
    let mut folder = Folder::of_encoder(&path, config.clone()).unwrap();
    let model = Encoder { config };
    let params = Net::discover(&model.inputs(2, 8), &model).unwrap();
    let mut values: Vec<Tensor> = params.iter().map(|p| Tensor::zeros(p.ty.clone()).unwrap()).collect();
    let unmatched = folder
        .load(&params, |param, bytes| {
            let at = params.iter().position(|p| p.name == param.name).unwrap();
            values[at].set_bytes(bytes).unwrap();
            Ok(())
        })
        .unwrap();
    Loaded { model, params, values, folder, unmatched }
}

fn inputs(golden: &Value) -> Vec<Tensor> {
    if golden["pixels"].is_null() {
        return vec![tokens(&golden["tokens"]), tokens(&golden["seen"])];
    }
    let shape: Vec<usize> = serde_json::from_value(golden["shape"].clone()).unwrap();
    let pixels: Vec<f32> = numbers(&golden["pixels"]).into_iter().map(|x| x as f32).collect();
    vec![Tensor::from_slice(&pixels, &shape[..]).unwrap()]
}

#[test]
fn logits_losses_and_the_gradients_of_all_weights_are_those_of_transformers() {
    for name in MODELS {
        let (loaded, golden) = (loaded(name, None, None), golden(name));
        assert_eq!(loaded.unmatched, Unmatched::default(), "{name}");
        let inputs = inputs(&golden);
        let mut net = Net::bound(&loaded.params, &loaded.values, false).predicting();
        let logits = loaded.model.forward(&mut net, &inputs).unwrap().one().unwrap();
        let shape: Vec<usize> = serde_json::from_value(golden["logits_shape"].clone()).unwrap();
        assert_eq!(logits.shape()[..], shape[..], "{name}");
        let (found, expected) = (logits.to_f64().unwrap(), numbers(&golden["logits"]));
        let seen = golden["seen"].as_array().map(|rows| rows.iter().flat_map(numbers).collect::<Vec<f64>>());
        let classes = shape[2];
        for (row, (found, expected)) in found.chunks(classes).zip(expected.chunks(classes)).enumerate() {
            // What stands where nothing is seen is nobody's.
            if shape[1] > 1 && seen.as_ref().is_some_and(|seen| seen[row] == 0.0) {
                continue;
            }
            let (gap, at) = furthest(found, expected);
            assert!(gap < TOLERANCE, "{name}: logit {at} of row {row} is off by {gap}");
        }

        let labels = tokens(&golden["labels"]);
        let flat: Vec<f64> = golden["weights"].as_array().unwrap().iter().flat_map(numbers).collect();
        let (batch, counted) = (labels.shape()[0] as f64, flat.iter().sum::<f64>());
        let weights: Vec<f32> = flat.iter().map(|w| (w * batch / counted) as f32).collect();
        let weights = Tensor::from_slice(&weights, labels.shape().clone()).unwrap();
        let loss = || {
            let mut net = Net::bound(&loaded.params, &loaded.values, false);
            let outputs = loaded.model.forward(&mut net, &inputs).unwrap();
            TokenLoss::default().loss(&outputs, &[labels, weights]).unwrap()
        };
        check_training(name, &golden, (&loaded.params, &loaded.values), loss, TOLERANCE);
    }
}

#[test]
fn one_label_a_sample_needs_no_weights() {
    let (loaded, golden) = (loaded("vit", None, None), golden("vit"));
    let mut net = Net::bound(&loaded.params, &loaded.values, false);
    let outputs = loaded.model.forward(&mut net, &inputs(&golden)).unwrap();
    let labels = tokens(&golden["labels"]);
    let labels = labels.reshape([labels.shape()[0]]).unwrap();
    let loss = TokenLoss::default().loss(&outputs, &[labels]).unwrap().item().unwrap();
    assert!((loss - golden["loss"].as_f64().unwrap()).abs() < TOLERANCE, "{loss}");
}

#[test]
fn a_head_of_another_task_begins_anew_and_is_written_with_its_labels() {
    let labels: Vec<String> = ["no", "maybe", "yes", "never"].map(String::from).into();
    let loaded = loaded("bert-words", Some(Task::Sequence), Some(labels));
    let anew = ["bert/pooler/dense/weight", "bert/pooler/dense/bias", "classifier/weight", "classifier/bias"];
    assert_eq!(loaded.unmatched.anew, anew);
    assert_eq!(loaded.unmatched.unread.len(), 5, "{:?}", loaded.unmatched.unread);
    let folder = Scratch::new("encoder-saved");
    let out = folder.folder().join("model");
    save_encoder(&loaded.folder, &out, loaded.params.iter().zip(&loaded.values)).unwrap();
    let again = EncoderConfig::open(&out, None, None).unwrap();
    assert_eq!((again.task, again.labels[3].as_str()), (Task::Sequence, "never"));
    // Its own folder now: nothing is left over, and nothing begins anew.
    let mut folder = Folder::of_encoder(&out, again).unwrap();
    assert_eq!(folder.load(&loaded.params, |_, _| Ok(())).unwrap(), Unmatched::default());
}

#[test]
fn a_head_that_the_files_should_have_and_have_not_is_an_error() {
    let path = fixture("bert-words");
    let mut config = EncoderConfig::open(&path, None, None).unwrap();
    config.task = Task::Tokens;
    config.stored_task = Some(Task::Tokens);
    let mut folder = Folder::of_encoder(&path, config.clone()).unwrap();
    let model = Encoder { config };
    let params = Net::discover(&model.inputs(1, 4), &model).unwrap();
    let why = folder.load(&params, |_, _| Ok(())).unwrap_err().to_string();
    assert!(why.contains("classifier.weight"), "{why}");
}

/// Rows of lines, with their tokens, labels and weights.
fn rows(name: &str, task: Task, lines: &str, skips: bool) -> Result<(Packed, [Vec<i32>; 4]), String> {
    let source = fixture("bert-texts");
    let labels = Some(vec!["bad".into(), "good".into()]);
    let config = EncoderConfig::open(&source, Some(task), labels).unwrap();
    let tokenizer = Tokenizer::open(&source).unwrap();
    let folder = Scratch::new(name);
    let path = folder.folder().join("data.jsonl");
    std::fs::write(&path, lines).unwrap();
    let out = folder.folder().join("rows");
    let mut rows = LabelledRows::create(&out, &config, &tokenizer, 8, 1).unwrap();
    rows.read(&path, |_| skips).map_err(|e| e.to_string())?;
    let packed = rows.finish().unwrap();
    let numbers = |field: &str| {
        let bytes = std::fs::read(out.join(format!("{field}.npy"))).unwrap();
        let header = bytes.iter().position(|b| *b == b'\n').unwrap() + 1;
        bytes[header..].as_chunks::<4>().0.iter().map(|x| i32::from_le_bytes(*x)).collect()
    };
    Ok((packed, ["tokens", "seen", "labels", "weights"].map(numbers)))
}

#[test]
fn labels_and_hidden_words_become_rows() {
    let lines = "{\"text\": \"the ship\", \"label\": \"good\"}\n{\"text\": \"the machine is a line of memory of a ship\", \"label\": 0}\n";
    let (packed, [tokens, seen, labels, weights]) = rows("labels", Task::Sequence, lines, false).unwrap();
    assert_eq!((packed.rows, packed.truncated, packed.learnt), (2, 1, 2));
    assert_eq!(labels, [1, 0]);
    assert_eq!(weights, [1.0f32.to_bits() as i32; 2]);
    assert_eq!(
        (seen[..8].iter().sum::<i32>(), seen[8..].iter().sum::<i32>()),
        (tokens.iter().take_while(|t| **t != 284).count() as i32, 8)
    );
    // Both ends are there, of the text that was cut too.
    assert_eq!((tokens[8], tokens[15]), (tokens[0], tokens[seen[..8].iter().sum::<i32>() as usize - 1]));

    let (_, [_, _, labels, weights]) = rows(
        "labels",
        Task::Tokens,
        "{\"tokens\": [\"the\", \"ship\"], \"labels\": [\"bad\", \"good\"]}\n",
        false,
    )
    .unwrap();
    let learnt: Vec<i32> = labels.iter().zip(&weights).filter(|(_, w)| **w != 0).map(|(l, _)| *l).collect();
    assert_eq!(learnt, [0, 1]);

    let text = "{\"text\": \"the machine is a line of memory of a ship\"}\n";
    let (packed, [tokens, _, labels, weights]) = rows("labels", Task::MaskedWords, text, false).unwrap();
    assert!(packed.rows > 1, "a long text goes on in the next row");
    for (i, weight) in weights.iter().enumerate() {
        assert!(*weight == 0 || labels[i] != 0, "what was hidden is the label");
    }
    assert!(weights.chunks(8).all(|row| row.iter().any(|w| *w != 0)), "something is learnt of every row");
    assert_eq!(
        rows("labels", Task::MaskedWords, text, false).unwrap().1[0],
        tokens,
        "the same words are hidden again"
    );
}

#[test]
fn a_line_that_is_no_sample_is_an_error_with_its_line_or_is_counted() {
    let good = "{\"text\": \"the ship\", \"label\": 1}\n";
    for (line, word) in [
        ("{\"text\": \"a\", \"label\": \"fine\"}", "\"fine\" is none of the 2 labels (bad, good)"),
        ("{\"text\": \"a\", \"label\": 2}", "2 is none"),
        ("{\"text\": 3, \"label\": 1}", "text must be a string"),
        ("{\"text\": \"\", \"label\": 1}", "nothing in it"),
        ("{\"text\": \"a\", \"other\": \"b\", \"label\": 1}", "other is not known"),
        ("[1]", "no object"),
        ("{", "no JSON"),
    ] {
        let lines = format!("{good}{line}\n{good}");
        let why = rows("wrong-labels", Task::Sequence, &lines, false).unwrap_err();
        assert!(why.contains("line 2") && why.contains(word), "{why}");
        let (packed, _) = rows("wrong-labels", Task::Sequence, &lines, true).unwrap();
        assert_eq!((packed.rows, packed.skipped), (2, 1), "{line}");
    }
    let why =
        rows("wrong-labels", Task::Tokens, "{\"tokens\": [\"a\"], \"labels\": [0, 1]}\n", false).unwrap_err();
    assert!(why.contains("1 tokens and 2 labels"), "{why}");
}
