//! Turns the metrics that a model was compiled with in Keras into measures of its outputs, under Keras's names.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::LazyLock;

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Auc, Count, Curve, Measure, Metric, Summation, View};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::{Map, Value};

use crate::KerasModel;
use crate::error::refuse;
use crate::loss::{OutputLoss, targets};
use crate::metric_own::{Average, Counted, Share};
use crate::named::Named;
use crate::settings::Settings;
use crate::traced_loss::TracedLoss;

/// The most numbers of one metric.
const MOST_NUMBERS: usize = 1 << 12;
static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);

/// The metrics of a compile configuration, by the output they are of.
pub(crate) struct Metrics<'a> {
    pub by_output: Vec<Vec<Stored<'a>>>,
    /// What could not be given to an output.
    others: Vec<String>,
}

/// A metric of a file.
pub(crate) struct Stored<'a> {
    /// What Keras calls its value.
    name: String,
    /// The class or function, as [`Named::folded`] has it.
    folded: String,
    settings: Settings<'a>,
    /// Named by a word, which may stand for several classes.
    is_word: bool,
    /// Whether it is Keras's own.
    is_kerass: bool,
    /// Whether it counts the weights of samples.
    is_weighted: bool,
    /// Of a metric that gives several numbers, which of them.
    which: Cell<Option<usize>>,
    /// A function of the user's own, followed into operations.
    traced: Option<TracedLoss>,
}

/// Settings that are read elsewhere or change nothing: labels of both kinds are taken, and labels are counted.
const IDLE: [&str; 5] = ["name", "dtype", "fn", "num_labels", "reduction"];

/// The metrics that count samples alike and those that count their weights, by output.
pub(crate) fn lists<'a>(plain: &'a Value, weighted: &'a Value, names: &[String]) -> Metrics<'a> {
    let mut found = list(&[plain], names);
    let more = list(&[weighted], names);
    for (own, more) in found.by_output.iter_mut().zip(more.by_output) {
        own.extend(more.into_iter().map(|metric| Stored { is_weighted: true, ..metric }));
    }
    found.others.extend(more.others);
    found
}

/// Gives metrics to outputs as Keras does: all to the only one; else a list has one entry for each output, a map one by name.
fn list<'a>(given: &[&'a Value], names: &[String]) -> Metrics<'a> {
    let mut found = Metrics { by_output: names.iter().map(|_| Vec::new()).collect(), others: Vec::new() };
    for &value in given {
        let value = match value.get("class_name").and_then(Value::as_str) {
            Some("CompileMetrics") => value.pointer("/config/metrics").unwrap_or(&Value::Null),
            _ => value,
        };
        match value {
            Value::Null => {}
            value if names.len() == 1 => collect(value, &mut found.by_output[0]),
            Value::Array(list) if list.len() == names.len() => {
                list.iter().zip(&mut found.by_output).for_each(|(value, own)| collect(value, own));
            }
            Value::Object(map) if !map.contains_key("class_name") => {
                for (key, value) in map {
                    match names.iter().position(|name| name == key) {
                        Some(i) => collect(value, &mut found.by_output[i]),
                        None => found.others.push(format!("those of {key}, which is no output")),
                    }
                }
            }
            value => {
                let mut all = Vec::new();
                collect(value, &mut all);
                let own = |metric: Stored<'_>| format!("{}, which is given to no output", metric.name);
                found.others.extend(all.into_iter().map(own));
            }
        }
    }
    found
}

/// Metrics with their settings, however they are nested.
fn collect<'a>(value: &'a Value, found: &mut Vec<Stored<'a>>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| collect(value, found)),
        Value::Object(map) if !map.contains_key("class_name") => {
            map.values().for_each(|value| collect(value, found));
        }
        Value::Null => {}
        value => found.push(Stored::read(value)),
    }
}

impl<'a> Stored<'a> {
    fn read(value: &'a Value) -> Stored<'a> {
        let config = value.get("config").and_then(Value::as_object).unwrap_or(&EMPTY);
        let class = value.get("class_name").and_then(Value::as_str).unwrap_or_default();
        // A function that was wrapped is a setting.
        let meant = config.get("fn").unwrap_or(value);
        let read = Named::read(value, "a metric").and_then(|_| Named::read(meant, "a metric"));
        let (known, is_word) = read.as_ref().map_or((class, false), |named| (named.name, named.is_word));
        let name = config.get("name").and_then(Value::as_str).unwrap_or(known);
        let traced = TracedLoss::is_stored(value).then(|| TracedLoss::read(value).ok()).flatten();
        // All that is said of one that was followed is read with it.
        let settings = if traced.is_some() { &EMPTY } else { config };
        Stored {
            name: name.to_string(),
            folded: read.as_ref().map_or(String::new(), Named::folded),
            settings: Settings::new("a metric", known, settings),
            is_word: is_word && value.is_string(),
            is_kerass: read.is_ok() || traced.is_some(),
            traced,
            is_weighted: false,
            which: Cell::new(None),
        }
    }
}

impl Metrics<'_> {
    /// The measures, and what has no counterpart here.
    /// Where samples bring weights, those that count them do.
    pub(crate) fn read(
        self,
        model: &KerasModel,
        labelled: &[usize],
        weights: bool,
    ) -> (Vec<Measure>, Vec<String>) {
        let (mut measures, mut others): (Vec<Measure>, Vec<String>) = (Vec::new(), self.others);
        let several = self.by_output.len() > 1;
        let by_output = || self.by_output.iter().enumerate();
        let all = || by_output().flat_map(|(output, own)| own.iter().map(move |metric| (output, metric)));
        // In Keras's order: those that count samples alike come first.
        let (plain, by_weight): (Vec<_>, Vec<_>) = all().partition(|(_, metric)| !metric.is_weighted);
        for (output, metric) in plain.into_iter().chain(by_weight) {
            let before = match several {
                true => format!("{}_", model.output_names().get(output).map_or("", String::as_str)),
                false => String::new(),
            };
            let mut name = format!("{before}{}", metric.name);
            // A metric that gives several numbers has its name with an index behind it.
            let is_taken =
                |name: &str| measures.iter().any(|m| m.name == name || m.name == format!("{name}[0]"));
            if metric.is_weighted && is_taken(&name) {
                name = format!("{before}weighted_{}", metric.name);
            }
            let found = if metric.is_kerass { metric.counts(model, output) } else { None };
            let found = match found {
                Some(counts) if weights && metric.is_weighted => counts
                    .into_iter()
                    .map(|(count, view)| metric.weighted(count).map(|count| (count, view)))
                    .collect::<Option<Vec<_>>>(),
                found => found,
            };
            let (Some(counts), Some(label)) = (found, labelled.iter().position(|own| *own == output)) else {
                others.push(name);
                continue;
            };
            if let Some(key) = metric.settings.unread(&IDLE) {
                others.push(format!("{name}, whose {key} is not known here"));
                continue;
            }
            // Keras numbers those of one name.
            if is_taken(&name) {
                let numbered =
                    (1..=measures.len()).map(|k| format!("{name}_{k}")).find(|name| !is_taken(name));
                name = numbered.unwrap_or(name);
            }
            let is_one = counts.len() == 1;
            for (i, (count, view)) in counts.into_iter().enumerate() {
                let name = if is_one { name.clone() } else { format!("{name}[{i}]") };
                measures.push(Measure { name, count, output, label, view });
            }
        }
        (measures, others)
    }
}

impl Stored<'_> {
    /// All that is counted: several numbers where the metric gives as many, else one; none where that is not known here.
    fn counts(&self, model: &KerasModel, output: usize) -> Option<Vec<(Count, View)>> {
        let last = model.outputs().get(output)?.shape.last().copied()?;
        let numbers = match self.folded.as_str() {
            "precision" | "recall" | "truepositives" | "truenegatives" | "falsepositives"
            | "falsenegatives" => self.get("thresholds").as_array().map_or(1, Vec::len),
            "f1score" | "fbetascore" if self.is_null("average") => last,
            "r2score" if self.is_null("class_aggregation") => last,
            _ => 1,
        };
        if numbers == 1 {
            return Some(vec![self.count(model, output)?]);
        }
        if numbers > MOST_NUMBERS {
            return None;
        }
        let one = |i: usize| {
            self.which.set(Some(i));
            self.count(model, output)
        };
        (0..numbers).map(one).collect()
    }

    /// The only threshold, or the one of several that is asked for.
    fn threshold(&self) -> Option<Option<f64>> {
        match (self.get("thresholds"), self.which.get()) {
            (Value::Array(list), Some(i)) => list.get(i)?.as_f64().map(Some),
            (Value::Array(list), None) if list.len() == 1 => list[0].as_f64().map(Some),
            (Value::Null, _) => Some(None),
            (one, _) => one.as_f64().map(Some),
        }
    }

    /// What is counted, and what it must see of the output; none where that is not known here.
    fn count(&self, model: &KerasModel, output: usize) -> Option<(Count, View)> {
        let view = model.view(output);
        let known = self.folded.as_str();
        // A metric may take what Keras's model gives for logits: that must then not be probabilities.
        let from_logits = self.flag("from_logits");
        let of = |metric: Metric| {
            let (metric, view) = seen(metric, view, model.gives_probabilities(output));
            Some((Count::Metric(metric), view))
        };
        let last = model.outputs().get(output)?.shape.last().copied()?;
        let threshold = self.number("threshold", 0.5)?;
        if let Some(own) = self.own(known, last) {
            // Classes have the same order before a softmax; all others are about what Keras gives.
            return Some((Count::Own(Arc::new(own)), view));
        }
        match known {
            // Keras goes by the shape of the output.
            "accuracy" | "acc" if self.is_word && last == 1 => of(Metric::BinaryAccuracyAt(0.5)),
            "accuracy" | "acc" if self.is_word => of(Metric::Accuracy),
            "sparsecategoricalaccuracy" | "categoricalaccuracy" if last > 1 => of(Metric::Accuracy),
            "binaryaccuracy" => of(Metric::BinaryAccuracyAt(threshold)),
            "sparsetopkcategoricalaccuracy" | "topkcategoricalaccuracy" if !self.flag("from_sorted_ids") => {
                of(Metric::TopK(self.whole("k", 5)?))
            }
            "auc" if self.is_null("thresholds") && self.is_null("label_weights") => {
                let auc = self.auc()?;
                match (from_logits, view) {
                    (false, _) => of(Metric::Auc(auc)),
                    (true, View::Plain) => Some((Count::Metric(Metric::Auc(auc)), View::Sigmoid)),
                    (true, _) => None,
                }
            }
            "auc" => None,
            "precision" | "recall" if self.is_null("top_k") => {
                let threshold = self.threshold()?.unwrap_or(0.5);
                let class = match self.is_null("class_id") {
                    true => None,
                    false => Some(self.whole("class_id", 0).filter(|class| *class < last)?),
                };
                match known {
                    "precision" => of(Metric::Precision { threshold, class }),
                    _ => of(Metric::Recall { threshold, class }),
                }
            }
            "mse" | "meansquarederror" => of(Metric::Mse),
            "mae" | "meanabsoluteerror" => of(Metric::Mae),
            "rootmeansquarederror" => of(Metric::Rmse),
            // The metric is the cosine, the loss is minus that.
            "cosinesimilarity" => {
                let loss = self.loss(known)?;
                Some((Count::Mean(Arc::new(move |x: &Tensor, t: &Tensor| loss.mean(x, t)?.neg())), view))
            }
            "pearsoncorrelation" if self.on_last_axis() => Some((Count::Mean(Arc::new(pearson)), view)),
            "concordancecorrelation" if self.on_last_axis() => {
                Some((Count::Mean(Arc::new(concordance)), view))
            }
            _ => {
                let loss = self.loss(known)?;
                Some((Count::Mean(Arc::new(move |x: &Tensor, t: &Tensor| loss.mean(x, t))), view))
            }
        }
    }

    /// The same mean, weighted by samples; none of what is no mean.
    fn weighted(&self, count: Count) -> Option<Count> {
        match count {
            Count::Metric(metric) if !matches!(metric, Metric::Rmse | Metric::Perplexity) => {
                // Whether it is a mean is known of the metric, before there are tensors.
                let is_mean = !matches!(
                    metric,
                    Metric::Precision { .. }
                        | Metric::Recall { .. }
                        | Metric::Auc(_)
                        | Metric::MeanIou
                        | Metric::R2
                );
                let weighing = move |x: &Tensor, t: &Tensor, weights: &Tensor| {
                    let each = metric.each(x, t)?.ok_or_else(|| refuse("weighs what is no mean"))?;
                    let each = each.cast(DType::F32)?;
                    let each =
                        if each.shape().rank() > 1 { each.flatten(1)?.mean(&[1], false)? } else { each };
                    each.mul(&weights.cast(DType::F32)?)?.sum(&[], false)
                };
                is_mean.then(|| Count::Weighted(Arc::new(weighing)))
            }
            Count::Mean(_) if self.folded != "cosinesimilarity" => {
                let loss = self.loss(&self.folded)?;
                let weighing = move |x: &Tensor, t: &Tensor, weights: &Tensor| {
                    let samples = weights.ty().elements() as f64;
                    loss.weighted_mean(x, t, weights)?.mul_scalar(samples)
                };
                Some(Count::Weighted(Arc::new(weighing)))
            }
            _ => None,
        }
    }

    /// A loss as a metric: its mean over samples.
    fn loss(&self, known: &str) -> Option<OutputLoss> {
        if let Some(traced) = &self.traced {
            return Some(OutputLoss::Traced(traced.clone()));
        }
        let folded = match known {
            "logcosherror" => "logcosh",
            known => known,
        };
        // Over a part of the elements a metric is another mean than a loss.
        let own = |loss: &OutputLoss| !matches!(loss, OutputLoss::Sum(_) | OutputLoss::Ignoring { .. });
        OutputLoss::of(&self.settings, folded).ok().filter(own)
    }

    /// What is counted by sums of its own; none where it is something else, or gives several numbers.
    fn own(&self, known: &str, last: usize) -> Option<Counted> {
        let class = || match self.is_null("class_id") {
            true => Some(None),
            false => self.whole("class_id", 0).filter(|class| *class < last).map(Some),
        };
        let cases = |share: Share| {
            let top = if self.is_null("top_k") { None } else { Some(self.whole("top_k", 0)?) };
            if top.is_some_and(|k| k == 0 || k > last) {
                return None;
            }
            let threshold = self.threshold()?.or(if top.is_none() { Some(0.5) } else { None });
            Some(Counted::Cases { share, threshold, class: class()?, top })
        };
        let best = |of: Share, where_: Share, key: &str| {
            let thresholds =
                Some(self.whole("num_thresholds", 200)?).filter(|n| (2..=1 << 16).contains(n))?;
            Some(Counted::Best { of, where_, least: self.get(key).as_f64()?, thresholds, class: class()? })
        };
        let wanted = |classes: usize| -> Option<Vec<usize>> {
            let Value::Array(list) = self.get("target_class_ids") else { return None };
            list.iter().map(|id| id.as_u64().map(|id| id as usize).filter(|id| *id < classes)).collect()
        };
        let classes = || Some(self.whole("num_classes", last)?).filter(|n| (1..=1 << 16).contains(n));
        let iou = |wanted: Vec<usize>, sparse: [bool; 2]| {
            let ignored =
                if self.is_null("ignore_class") { None } else { Some(self.get("ignore_class").as_i64()?) };
            self.on_last_axis().then_some(Counted::Iou { classes: classes()?, wanted, ignored, sparse })
        };
        let sparse = |key: &str, default: bool| self.get(key).as_bool().unwrap_or(default);
        match known {
            "f1score" | "fbetascore" => Some(Counted::FBeta {
                average: match (self.get("average").as_str(), self.which.get()) {
                    (Some("micro"), _) => Average::Micro,
                    (Some("macro"), _) => Average::Macro,
                    (Some("weighted"), _) => Average::Weighted,
                    (None, Some(class)) => Average::Class(class),
                    // Of one class there is but one number.
                    (None, None) if self.is_null("average") => Average::Class(0),
                    _ => return None,
                },
                beta: self.number("beta", 1.0)?,
                threshold: if self.is_null("threshold") {
                    None
                } else {
                    Some(self.number("threshold", 0.5)?)
                },
            }),
            "truepositives" => cases(Share::TruePositives),
            "truenegatives" => cases(Share::TrueNegatives),
            "falsepositives" => cases(Share::FalsePositives),
            "falsenegatives" => cases(Share::FalseNegatives),
            "precision" if !self.is_null("top_k") => cases(Share::Precision),
            "recall" if !self.is_null("top_k") => cases(Share::Recall),
            "precisionatrecall" => best(Share::Precision, Share::Recall, "recall"),
            "recallatprecision" => best(Share::Recall, Share::Precision, "precision"),
            "sensitivityatspecificity" => best(Share::Recall, Share::Specificity, "specificity"),
            "specificityatsensitivity" => best(Share::Specificity, Share::Recall, "sensitivity"),
            "auc" if !self.flag("from_logits") => self.area(),
            "binaryiou" => {
                let wanted = if self.is_null("target_class_ids") { vec![0, 1] } else { wanted(2)? };
                Some(Counted::BinaryIou { wanted, threshold: self.number("threshold", 0.5)? })
            }
            "meaniou" => {
                iou((0..classes()?).collect(), [sparse("sparse_y_true", true), sparse("sparse_y_pred", true)])
            }
            "onehotmeaniou" => iou((0..classes()?).collect(), [false, sparse("sparse_y_pred", false)]),
            "iou" => iou(wanted(classes()?)?, [sparse("sparse_y_true", true), sparse("sparse_y_pred", true)]),
            "onehotiou" => iou(wanted(classes()?)?, [false, sparse("sparse_y_pred", false)]),
            "r2score" => Some(Counted::R2 {
                by_variance: match self.get("class_aggregation").as_str() {
                    Some("uniform_average") => false,
                    Some("variance_weighted_average") => true,
                    None if self.is_null("class_aggregation") => false,
                    _ => return None,
                },
                column: self.which.get(),
                regressors: self.whole("num_regressors", 0)?,
            }),
            "accuracy" if !self.is_word => Some(Counted::Same),
            _ => None,
        }
    }

    /// An area with thresholds or weights of its own.
    fn area(&self) -> Option<Counted> {
        let numbers = |key: &str| match self.get(key).pointer("/config/value").unwrap_or(self.get(key)) {
            Value::Null => Some(Vec::new()),
            Value::Array(list) if list.len() <= 1 << 12 => list.iter().map(Value::as_f64).collect(),
            _ => None,
        };
        let (mut thresholds, weights): (Vec<f64>, Vec<f64>) =
            (numbers("thresholds")?, numbers("label_weights")?);
        let by_label = self.flag("multi_label");
        if thresholds.is_empty() == weights.is_empty() || (by_label != thresholds.is_empty()) {
            return None;
        }
        if !thresholds.is_empty() {
            thresholds.sort_by(f64::total_cmp);
            thresholds.insert(0, -1e-7);
            thresholds.push(1.0 + 1e-7);
        }
        Some(Counted::Area { auc: self.auc()?, thresholds, weights })
    }

    fn on_last_axis(&self) -> bool {
        matches!(self.get("axis").as_i64(), Some(-1)) || self.is_null("axis")
    }

    fn auc(&self) -> Option<Auc> {
        let text = |key: &str, default: &'static str| match self.get(key) {
            Value::Null => Some(default.to_string()),
            value => value.as_str().map(str::to_lowercase),
        };
        Some(Auc {
            thresholds: Some(self.whole("num_thresholds", 200)?).filter(|n| (2..=1 << 16).contains(n))?,
            curve: match text("curve", "roc")?.as_str() {
                "roc" => Curve::Roc,
                "pr" => Curve::Pr,
                _ => return None,
            },
            summation: match text("summation_method", "interpolation")?.as_str() {
                "interpolation" => Summation::Interpolation,
                "minoring" => Summation::Minoring,
                "majoring" => Summation::Majoring,
                _ => return None,
            },
            by_label: self.flag("multi_label"),
        })
    }

    fn get(&self, key: &str) -> &Value {
        self.settings.get(key)
    }

    fn is_null(&self, key: &str) -> bool {
        self.get(key).is_null()
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).as_bool().unwrap_or(false)
    }

    fn number(&self, key: &str, default: f64) -> Option<f64> {
        if self.is_null(key) { Some(default) } else { self.get(key).as_f64() }
    }

    fn whole(&self, key: &str, default: usize) -> Option<usize> {
        let value = self.get(key);
        if value.is_null() { Some(default) } else { value.as_u64().and_then(|n| usize::try_from(n).ok()) }
    }
}

/// A metric as it must be to see what Keras's would, and what it must be seen through: of an output that is to be seen
/// through `view`, or gives probabilities.
pub(crate) fn seen(metric: Metric, view: View, is_probability: bool) -> (Metric, View) {
    match metric {
        // The order of classes is the same before a softmax or sigmoid.
        Metric::Accuracy | Metric::TopK(_) | Metric::MeanIou => (metric, View::Plain),
        // These are about logits.
        Metric::BinaryAccuracy if is_probability => (Metric::BinaryAccuracyAt(0.5), view),
        Metric::BinaryAccuracy | Metric::CrossEntropy | Metric::Perplexity => (metric, View::Plain),
        metric => (metric, view),
    }
}

/// The correlation of each row with its labels, as a mean over rows.
fn pearson(x: &Tensor, t: &Tensor) -> RunResult<Tensor> {
    let t = targets(x, t)?;
    let last = x.shape().rank().saturating_sub(1);
    let unit = |x: &Tensor| -> RunResult<Tensor> {
        let x = x.sub(&x.mean(&[last], true)?)?;
        x.div(&x.square()?.mean(&[last], true)?.sqrt()?)
    };
    unit(x)?.mul(&unit(&t)?)?.mean(&[], false)
}

/// As Keras has it: the product is of both from the outputs' mean.
fn concordance(x: &Tensor, t: &Tensor) -> RunResult<Tensor> {
    let t = targets(x, t)?;
    let last = x.shape().rank().saturating_sub(1);
    let mean = |x: &Tensor| x.mean(&[last], true);
    let (x_mean, t_mean) = (mean(x)?, mean(&t)?);
    let (x_off, t_off) = (x.sub(&x_mean)?, t.sub(&t_mean)?);
    let spread =
        mean(&x_off.square()?)?.add(&mean(&t_off.square()?)?)?.add(&t_mean.sub(&x_mean)?.square()?)?;
    t.sub(&x_mean)?.mul(&x_off)?.mul_scalar(2.0)?.div(&spread.add_scalar(1e-7)?)?.mean(&[], false)
}

/// A measure of nothing yet.
pub(crate) fn blank() -> Measure {
    Metric::Mae.into()
}
