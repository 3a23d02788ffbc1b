//! Files that nobody would write by mistake: cycles, graphs in graphs, functions that call themselves, sizes that are none.

use prost::Message;

use crate::messages::attribute_proto::AttributeType;
use crate::messages::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto,
    ValueInfoProto,
};
use crate::{Lengths, Limits, OnnxModel};

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|&x| x.into()).collect(),
        output: outputs.iter().map(|&x| x.into()).collect(),
        ..NodeProto::default()
    }
}

fn output(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), ..ValueInfoProto::default() }
}

fn graph(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto { node: nodes, output: vec![output("y")], ..GraphProto::default() }
}

fn refusal(graph: GraphProto, functions: Vec<FunctionProto>) -> String {
    let opset = OperatorSetIdProto { domain: None, version: Some(17) };
    let own = OperatorSetIdProto { domain: Some("own".into()), version: Some(1) };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset, own],
        graph: Some(graph),
        functions,
        ..ModelProto::default()
    };
    let found =
        OnnxModel::from_bytes(model.encode_to_vec(), "hostile", &Limits::default(), &Lengths::default());
    found.unwrap_err().to_string()
}

fn tensor(dims: &[i64], data: &[i64]) -> AttributeProto {
    let t = TensorProto {
        dims: dims.into(),
        data_type: Some(7),
        int64_data: data.into(),
        ..TensorProto::default()
    };
    let kind = Some(AttributeType::Tensor as i32);
    AttributeProto { name: Some("value".into()), t: Some(t), r#type: kind, ..AttributeProto::default() }
}

fn constant(name: &str, dims: &[i64], data: &[i64]) -> NodeProto {
    NodeProto { attribute: vec![tensor(dims, data)], ..node("Constant", &[], &[name]) }
}

#[test]
fn a_cycle_is_refused() {
    let error = refusal(graph(vec![node("Relu", &["b"], &["a"]), node("Relu", &["a"], &["b"])]), vec![]);
    assert!(error.contains("cycle") && error.contains("Relu"), "{error}");
    let twice = vec![constant("y", &[], &[1]), constant("y", &[], &[2])];
    assert!(refusal(graph(twice), vec![]).contains("there already"));
}

#[test]
fn graphs_in_graphs_end() {
    let mut inner = graph(vec![constant("y", &[], &[1])]);
    for _ in 0..40 {
        let branch =
            AttributeProto { name: Some("then_branch".into()), g: Some(inner), ..AttributeProto::default() };
        inner = graph(vec![NodeProto { attribute: vec![branch], ..node("If", &["c"], &["y"]) }]);
    }
    let error = refusal(inner, vec![]);
    assert!(error.contains("nesting"), "{error}");
}

#[test]
fn a_function_that_calls_itself_ends() {
    let call = NodeProto { domain: Some("own".into()), ..node("F", &["x"], &["y"]) };
    let body = vec![call.clone(), NodeProto { output: vec!["z".into()], ..call.clone() }];
    let function = FunctionProto {
        name: Some("F".into()),
        domain: Some("own".into()),
        input: vec!["x".into()],
        output: vec!["y".into()],
        node: body,
        ..FunctionProto::default()
    };
    let error = refusal(graph(vec![constant("x", &[], &[1]), call]), vec![function]);
    assert!(error.contains("without"), "{error}");
}

#[test]
fn sizes_that_no_machine_has_are_refused() {
    let huge = i64::MAX / 2;
    for (op, dims) in
        [("ConstantOfShape", [1 << 36, 1]), ("ConstantOfShape", [huge, huge]), ("ConstantOfShape", [-1, 4])]
    {
        let error = refusal(graph(vec![constant("s", &[2], &dims), node(op, &["s"], &["y"])]), vec![]);
        assert!(error.contains("ConstantOfShape") || error.contains("memory"), "{error}");
    }
    let range = vec![
        constant("a", &[], &[0]),
        constant("b", &[], &[1 << 39]),
        constant("c", &[], &[1]),
        node("Range", &["a", "b", "c"], &["y"]),
    ];
    assert!(refusal(graph(range), vec![]).contains("Range"));
    let error = refusal(graph(vec![constant("y", &[huge, 4], &[1])]), vec![]);
    assert!(error.contains("y (Constant)"), "{error}");
    let many = refusal(
        graph(vec![constant("s", &[2], &[1 << 20, 1 << 20]), node("Expand", &["s", "s"], &["y"])]),
        vec![],
    );
    assert!(!many.is_empty());
}

#[test]
fn what_is_not_known_is_named() {
    let error = refusal(graph(vec![constant("x", &[], &[1]), node("Zorp", &["x"], &["y"])]), vec![]);
    assert!(error.contains("y (Zorp)"), "{error}");
    let mut odd = node("Relu", &["x"], &["y"]);
    odd.attribute =
        vec![AttributeProto { name: Some("zorp".into()), i: Some(1), ..AttributeProto::default() }];
    let error = refusal(graph(vec![constant("x", &[], &[1]), odd]), vec![]);
    assert!(error.contains("zorp"), "{error}");
}
