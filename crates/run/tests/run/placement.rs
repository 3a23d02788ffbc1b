//! Ops are put on the device that was asked for, or on one that has a kernel for them, and the log says which and why.

use plimsoll_device::{Bytes, Kind as LedgerKind};
use plimsoll_graph::custom::{CustomOp, CustomOps, HostCall};
use plimsoll_graph::{Backward, DType, Keep, Sym, Type, Types};
use plimsoll_run::{
    Device, Error, Kind, Result, StateTensor, Step, StepArgs, StepOptions, StepResult, Tape, Tensor,
    TensorOps, function, named, on_device,
};
use plimsoll_testing::{alone, group};

const WIDTH: usize = 32;
const BATCH: usize = 16;

/// y = 2x, with a kernel for the CPU alone.
#[derive(Clone, Copy, Debug)]
struct Double;

impl CustomOp for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn infer(&self, inputs: &[&Type]) -> std::result::Result<Types, String> {
        Ok([inputs[0].clone()].into_iter().collect())
    }

    fn run(&self, call: &mut HostCall<'_>) -> std::result::Result<(), String> {
        let x = call.inputs[0].f32()?;
        call.outputs[0].f32()?.iter_mut().zip(x).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    }

    fn keep(&self) -> Keep {
        Keep::default()
    }

    fn gradient(&self, at: &Backward<'_>) -> plimsoll_graph::Result<Vec<Option<Sym>>> {
        Ok(vec![Some(at.grad(0)?.mul_scalar(2.0)?)])
    }
}

fn double(x: &Tensor) -> Result<Tensor> {
    Ok(x.custom(Double, &[x])?.remove(0))
}

/// The devices with memory of their own, each with a name for messages.
fn devices() -> Vec<Device> {
    let found = [("emulator", Device::cuda_emulated(Bytes::mib(256))), ("card", Device::cuda(0))];
    found.into_iter().filter_map(|(name, device)| group(name, device)).collect()
}

fn noise(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37) % 101) as f32 / 400.0 - 0.1).collect()
}

/// Two layers, the second on a device of one's own choice; with `f` between them.
fn compile(
    device: &Device,
    second: Option<&'static str>,
    f: fn(&Tensor) -> Result<Tensor>,
) -> Result<(Step, Tensor)> {
    device.scope(|| {
        let tensor = || Tensor::from_slice(&noise(WIDTH * WIDTH), [WIDTH, WIDTH]);
        let held =
            |i: usize| Ok(StateTensor { name: format!("w{i}"), kind: Kind::Parameter, tensor: tensor()? });
        let x = Type::new(DType::F32, [BATCH, WIDTH]);
        let body = move |pass: &StepArgs<'_>| {
            let tape = Tape::new();
            pass.state.iter().try_for_each(|w| tape.watch(w))?;
            let y = named("first", || f(&pass.inputs[0].matmul(&pass.state[0])?.tanh()?))?;
            let layer = || named("second", || y.matmul(&pass.state[1])?.tanh());
            let y = second.map_or_else(layer, |device| on_device(device, layer))?;
            let loss = y.square()?.mean(&[], false)?;
            let slopes = tape.gradient(&loss, &pass.state.iter().collect::<Vec<_>>())?;
            let new = pass.state.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(0.5)?));
            Ok(StepResult { state: new.collect::<Result<_>>()?, outputs: vec![loss], totals: vec![] })
        };
        let held = (0..2).map(held).collect::<Result<Vec<_>>>()?;
        let step = Step::compile_with(StepOptions::default(), held, &[x], body)?;
        Ok((step, Tensor::from_slice(&noise(BATCH * WIDTH), [BATCH, WIDTH])?))
    })
}

fn identity(x: &Tensor) -> Result<Tensor> {
    Ok(x.clone())
}

fn losses(step: &mut Step, x: &Tensor) -> Vec<f64> {
    (0..5).map(|_| step.run(&[x]).unwrap()[0].item().unwrap()).collect()
}

fn close(a: &[f64], b: &[f64]) {
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs() / b.abs().max(1e-6)).fold(0.0, f64::max);
    assert!(far < 1e-4, "{a:?} and {b:?}");
}

#[test]
fn a_layer_on_the_host_learns_the_same_and_its_copies_are_counted() {
    let _alone = alone();
    for device in devices() {
        let (mut plain, x) = compile(&device, None, identity).unwrap();
        let expected = losses(&mut plain, &x);
        device.log_placement(true);
        let (mut step, x) = compile(&device, Some("cpu"), identity).unwrap();
        let log = device.placements();
        device.log_placement(false);
        let on_host: Vec<_> = log.iter().filter(|line| line.device == "cpu").collect();
        // The layer's product and its gradients too; nothing of the other layer.
        assert!(on_host.iter().filter(|line| line.op == "matmul").count() >= 3, "{log:?}");
        assert!(
            on_host.iter().all(|line| line.layer.contains("@cpu") && line.why == "asked for cpu"),
            "{log:?}"
        );
        let first: Vec<_> = log.iter().filter(|line| line.layer == "first" && line.op == "matmul").collect();
        assert!(!first.is_empty() && first.iter().all(|line| line.device == device.name()), "{log:?}");
        let said = step.take_remark().unwrap();
        assert!(said.contains("on the host") && said.contains("asked for cpu"), "{said}");
        close(&losses(&mut step, &x), &expected);
        // What its ops read goes to the host and what they make comes back, in every step.
        let before = device.traffic();
        step.run(&[&x]).unwrap();
        let traffic = device.traffic().since(before);
        let weight = (4 * WIDTH * WIDTH) as u64;
        assert!(traffic.down.get() >= weight && traffic.up.get() >= weight, "{traffic:?}");
        // The plan has the host's side too, and the ledger a row.
        assert!(step.info().host_bytes.get() >= weight, "{:?}", step.info().host_bytes);
        let ledger = step.ledger();
        let row = ledger.row(LedgerKind::Host, "operands of ops on the host");
        assert!(row.is_some_and(|row| row.measured >= Some(Bytes(weight))), "{ledger}");
        // A profile sees these ops like any other.
        step.profile(2).unwrap();
        losses(&mut step, &x);
        losses(&mut step, &x);
        let (record, profile) = step.take_profile().unwrap();
        profile.check(&record, "profile").unwrap();
        assert!(profile.mean.uploaded_bytes >= weight as f64, "{:?}", profile.mean);
    }
}

#[test]
fn an_op_without_a_kernel_is_an_error_or_runs_on_the_host() {
    let _alone = alone();
    for device in devices() {
        let error = compile(&device, None, double).err().unwrap().to_string();
        assert!(error.contains("no kernel for double") && error.contains("--soft-placement"), "{error}");
        device.soft_placement(true);
        let (mut step, x) = compile(&device, None, double).unwrap();
        let said = step.take_remark().unwrap();
        assert!(said.contains("1 op runs on the host, first/double first"), "{said}");
        let cpu = Device::cpu_with(1, Bytes::mib(64)).unwrap();
        let (mut expected, there) = compile(&cpu, None, double).unwrap();
        assert!(expected.take_remark().is_none());
        close(&losses(&mut step, &x), &losses(&mut expected, &there));
    }
}

#[test]
fn eager_ops_are_placed_the_same_way() {
    let _alone = alone();
    for device in devices() {
        device.scope(|| {
            let x = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
            let error = double(&x).unwrap_err().to_string();
            assert!(error.contains("--soft-placement"), "{error}");
            device.log_placement(true);
            let y = on_device("cpu", || x.add(&x)).unwrap();
            device.soft_placement(true);
            let z = double(&y).unwrap();
            assert_eq!(z.to_vec::<f32>().unwrap(), [4.0, 8.0]);
            assert!(z.device().unwrap().name() == device.name(), "what it makes is on the device");
            let log = device.placements();
            let said: Vec<(&str, &str)> = log.iter().map(|line| (line.op, line.device.as_str())).collect();
            assert_eq!(said, [("add", "cpu"), ("double", "cpu")]);
            assert!(log[1].why.contains("has no kernel for it; soft placement"), "{log:?}");
        });
    }
}

#[test]
fn a_device_that_there_is_not_is_an_error_unless_placement_is_soft() {
    let device = Device::cpu_with(1, Bytes::mib(64)).unwrap();
    let error = compile(&device, Some("cuda:3"), identity).err().unwrap();
    assert!(matches!(error, Error::Placement { .. }), "{error}");
    assert!(error.to_string().contains("asks for cuda:3, and this runs on cpu"), "{error}");
    device.soft_placement(true);
    device.log_placement(true);
    let (mut step, x) = compile(&device, Some("cuda:3"), identity).unwrap();
    let log = device.placements();
    let asked: Vec<_> =
        log.iter().filter(|line| line.layer.contains("@cuda:3") && line.op == "matmul").collect();
    let why = "asked for cuda:3, which this step has not; soft placement";
    assert!(!asked.is_empty() && asked.iter().all(|line| line.device == "cpu" && line.why == why), "{log:?}");
    let (mut plain, x2) =
        compile(&Device::cpu_with(1, Bytes::mib(64)).unwrap(), Some("cpu"), identity).unwrap();
    assert_eq!(losses(&mut step, &x), losses(&mut plain, &x2), "the same bits");
}

#[test]
fn layers_are_placed_by_name_and_a_name_that_none_has_is_told() {
    let _alone = alone();
    for device in devices() {
        device.place("second", "cpu");
        device.place("third*", "cpu");
        let (mut step, x) = compile(&device, None, identity).unwrap();
        let said = step.take_remark().unwrap();
        assert!(said.contains("second/") && said.contains("no layer is called third*"), "{said}");
        assert_eq!(device.unmet_wishes(), ["third*"]);
        let before = device.traffic();
        step.run(&[&x]).unwrap();
        assert!(device.traffic().since(before).up.get() >= (4 * WIDTH * WIDTH) as u64);
        // What code asks for goes before.
        let f = function(|x: &[Tensor]| on_device(x_device(x), || named("second", || Ok(vec![x[0].exp()?]))));
        let before = device.traffic();
        f.call(&[&x]).unwrap();
        assert_eq!(device.traffic().since(before).up.get(), 0);
    }
}

/// The name of the device of the current scope, on which a function is traced.
fn x_device(_: &[Tensor]) -> &'static str {
    let name = Device::current().unwrap().name().to_string();
    if name.starts_with("cuda:") { "cuda:0" } else { "cuda emulated" }
}
