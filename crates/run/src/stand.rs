//! The CPU in the place of a card: memory of its own, of which libraries and others take more when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_cpu::Cpu;
use plimsoll_device::backend::{Backend, Call, Fault, Speed, Unsupported};
use plimsoll_device::{Allocator, BestFit, Block, Bytes, Holder, OutOfMemory, Owner, ReleaseError, Stats};
use plimsoll_graph::{Op, Type};

use crate::device::Device;

/// What a test turns while a step runs.
#[derive(Debug)]
pub(crate) struct Knobs {
    /// All of the card's memory.
    pub(crate) total: AtomicU64,
    /// What the process takes of it beside tensors.
    pub(crate) own: AtomicU64,
    /// What somebody else takes at the moment when a workspace is mapped.
    pub(crate) thief: AtomicU64,
    /// Whether it takes as much every time.
    pub(crate) is_greedy: AtomicBool,
    /// Whether it has failed for good.
    pub(crate) is_lost: AtomicBool,
    /// What a line leaves for tensors; all bits where there is none.
    pub(crate) line: AtomicU64,
}

#[derive(Debug)]
struct Stand {
    cpu: Cpu,
    memory: Arc<Pool>,
    knobs: Arc<Knobs>,
}

#[derive(Debug)]
struct Pool {
    host: BestFit,
    knobs: Arc<Knobs>,
}

impl Knobs {
    /// A device with memory of its own, and what it can be turned by.
    pub(crate) fn device(total: Bytes, own: Bytes) -> (Device, Arc<Knobs>) {
        let knobs = Arc::new(Knobs {
            total: AtomicU64::new(total.get()),
            own: AtomicU64::new(own.get()),
            thief: AtomicU64::new(0),
            is_greedy: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            line: AtomicU64::new(u64::MAX),
        });
        let host = BestFit::new(Bytes::gib(1)).expect("addresses");
        let memory = Arc::new(Pool { host, knobs: knobs.clone() });
        let stand = Stand { cpu: Cpu::new(1), memory: memory.clone(), knobs: knobs.clone() };
        (Device::over(Arc::new(stand), memory), knobs)
    }

    fn get(number: &AtomicU64) -> Bytes {
        Bytes(number.load(Ordering::SeqCst))
    }
}

impl Backend for Stand {
    fn name(&self) -> &str {
        "stand"
    }

    fn signature(&self) -> String {
        "stand".into()
    }

    fn speed(&self) -> Speed {
        self.cpu.speed()
    }

    fn scratch(&self, op: &Op, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Unsupported> {
        self.cpu.scratch(op, inputs, outputs)
    }

    unsafe fn run(&self, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.cpu.run(call) }
    }

    fn is_host(&self) -> bool {
        false
    }

    fn synchronize(&self) -> Result<(), Fault> {
        match self.knobs.is_lost.load(Ordering::SeqCst) {
            true => Err(Fault { op: "stand", why: "it has failed".into() }),
            false => Ok(()),
        }
    }

    fn taken(&self) -> Option<Bytes> {
        Some(Knobs::get(&self.knobs.own) + self.memory.stats().reserved)
    }

    fn free(&self) -> Option<Bytes> {
        Some(Knobs::get(&self.knobs.total).saturating_sub(self.taken()?))
    }
}

impl Allocator for Pool {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        if owner.op == "step workspace" && bytes > Bytes::ZERO {
            let stolen = self.knobs.thief.load(Ordering::SeqCst);
            if !self.knobs.is_greedy.load(Ordering::SeqCst) {
                self.knobs.thief.store(0, Ordering::SeqCst);
            }
            self.knobs.total.fetch_sub(stolen, Ordering::SeqCst);
        }
        let left = Knobs::get(&self.knobs.total).saturating_sub(Knobs::get(&self.knobs.own));
        if self.host.stats().in_use + bytes > left || self.knobs.is_lost.load(Ordering::SeqCst) {
            return Err(OutOfMemory::new(bytes, owner, &self.stats(), Vec::new()).by_system());
        }
        if self.host.stats().in_use + bytes > Knobs::get(&self.knobs.line) {
            return Err(OutOfMemory::new(bytes, owner, &self.stats(), Vec::new()).by_line());
        }
        self.host.allocate(bytes, align, owner)
    }

    fn hold_to(&self, _who: u64, most: Option<Bytes>) {
        self.knobs.line.store(most.map_or(u64::MAX, Bytes::get), Ordering::SeqCst);
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        self.host.release(block)
    }

    fn stats(&self) -> Stats {
        let stats = self.host.stats();
        Stats { reserved: stats.in_use, ..stats }
    }

    fn reset_peak(&self) {
        self.host.reset_peak();
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.host.holders(n)
    }
}

mod tests {
    use super::*;
    use crate::{Error, Held, Kind, Step, StepOptions, StepResult, Tape, Tensor, TensorOps};
    use plimsoll_device::Verdict;
    use plimsoll_graph::DType;

    /// A deep chain over a batch: most of what it takes can be recomputed.
    fn step(device: &Device, memory: Option<Bytes>) -> crate::Result<Step> {
        device.scope(|| {
            let w = Tensor::from_f64(&[0.01; 64 * 64], Type::new(DType::F32, [64, 64]))?;
            let held = vec![Held { name: "w".into(), kind: Kind::Parameter, tensor: w }];
            let options = StepOptions { memory, ..StepOptions::default() };
            Step::compile_with(options, held, &[input()], |pass| {
                let tape = Tape::new();
                tape.watch(&pass.state[0])?;
                let mut x = pass.inputs[0].clone();
                for _ in 0..24 {
                    x = x.matmul(&pass.state[0])?.tanh()?;
                }
                let loss = x.square()?.mean(&[], false)?;
                let grad = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
                let state = vec![pass.state[0].sub(&grad.mul_scalar(0.1)?)?];
                Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
            })
        })
    }

    fn input() -> Type {
        Type::new(DType::F32, [16384, 64])
    }

    fn run(step: &mut Step, device: &Device) -> crate::Result<Vec<u8>> {
        let x = device.scope(|| Tensor::from_f64(&[0.5; 16384 * 64], input()))?;
        step.run(&[&x])?[0].to_bytes()
    }

    const OWN: Bytes = Bytes::mib(100);

    #[test]
    fn a_step_without_a_line_is_planned_within_what_the_device_has() {
        let (wide, _) = Knobs::device(Bytes::gib(1), OWN);
        let free = step(&wide, None).unwrap();
        let (planned, floor) = (free.info().planned, free.info().floor);
        assert!(floor < planned);
        let (tight, _) = Knobs::device(Bytes((floor.get() + planned.get()) / 2), OWN);
        let mut small = step(&tight, None).unwrap();
        assert!(small.info().planned < planned && small.info().recomputed_ops > 0);
        assert_eq!(run(&mut small, &tight).unwrap(), run(&mut { free }, &wide).unwrap());
        let (full, _) = Knobs::device(Bytes(floor.get() - 1), OWN);
        let why = match step(&full, None) {
            Err(why @ Error::Full { .. }) => why.to_string(),
            other => panic!("{:?}", other.map(|s| s.info().clone())),
        };
        assert!(
            why.starts_with("stand has not enough memory left") && why.contains("the least for this step is"),
            "{why}"
        );
    }

    #[test]
    fn memory_that_somebody_takes_after_planning_is_done_without() {
        let (device, knobs) = Knobs::device(Bytes::gib(1), OWN);
        let planned = step(&device, None).unwrap().info().planned;
        let left = planned.saturating_sub(Bytes::mib(60));
        knobs.thief.store(Bytes::gib(1).get() - left.get(), Ordering::SeqCst);
        let mut step = step(&device, None).unwrap();
        assert!(step.info().planned <= left, "{} of {left}", step.info().planned);
        run(&mut step, &device).unwrap();
        // One who takes more after every plan leaves none that fits, and the step says so.
        let (device, knobs) = Knobs::device(planned, OWN);
        knobs.thief.store(Bytes::mib(60).get(), Ordering::SeqCst);
        knobs.is_greedy.store(true, Ordering::SeqCst);
        let refused = self::step(&device, None).err().expect("nothing is left");
        assert!(matches!(refused, Error::OutOfMemory(_) | Error::Full { .. }), "{refused}");
    }

    #[test]
    fn memory_that_is_taken_while_another_form_is_made_or_the_line_is_moved_is_done_without() {
        let (wide, _) = Knobs::device(Bytes::gib(1), OWN);
        let mut free = step(&wide, None).unwrap();
        let planned = free.info().planned;
        let expected: Vec<Vec<u8>> = (0..2).map(|_| run(&mut free, &wide).unwrap()).collect();
        for is_moved in [false, true] {
            let (device, knobs) = Knobs::device(Bytes::gib(1), OWN);
            let mut step = step(&device, None).unwrap();
            let forward = step.add_body(|pass| {
                let y = pass.inputs[0].matmul(&pass.state[0])?.square()?.mean(&[], false)?;
                Ok(StepResult { state: pass.state.to_vec(), outputs: vec![y], totals: vec![] })
            });
            assert_eq!(run(&mut step, &device).unwrap(), expected[0]);
            let stolen = Bytes::gib(1).saturating_sub(planned) + Bytes::mib(60);
            knobs.thief.store(stolen.get(), Ordering::SeqCst);
            // Either way the workspace is given back while a plan is made, and there is less of it behind that.
            if is_moved {
                step.replan(StepOptions::default()).unwrap();
            } else {
                let x = device.scope(|| Tensor::from_f64(&[0.5; 16384 * 64], input())).unwrap();
                step.run_body(forward, &[&x]).unwrap();
            }
            assert_eq!(run(&mut step, &device).unwrap(), expected[1]);
            let left = device.capacity().unwrap();
            assert!(left < planned && step.info().planned <= left, "{} of {left}", step.info().planned);
        }
    }

    #[test]
    fn an_eager_op_beside_a_step_does_not_take_the_process_past_its_line() {
        let (device, _) = Knobs::device(Bytes::gib(1), OWN);
        let line = step(&device, None).unwrap().info().planned;
        let mut step = step(&device, Some(line)).unwrap();
        let expected = run(&mut step, &device).unwrap();
        // A page more than the line leaves.
        let past = || {
            let left = line.get() - device.taken().unwrap().get();
            device.scope(|| Tensor::zeros(Type::new(DType::U8, [left as usize + 4096])))
        };
        let refused = past().unwrap_err();
        let Error::OutOfMemory(why) = &refused else { panic!("{refused}") };
        assert!(why.verdict == Verdict::Line && why.to_string().contains("raise the line"), "{refused}");
        device.scope(|| Tensor::zeros(Type::new(DType::U8, [4096]))).unwrap();
        step.replan(StepOptions::default()).unwrap();
        past().unwrap();
        step.replan(StepOptions { memory: Some(line), ..StepOptions::default() }).unwrap();
        assert!(past().is_err());
        drop(step);
        past().unwrap();
        assert_eq!(run(&mut self::step(&device, None).unwrap(), &device).unwrap(), expected);
    }

    #[test]
    fn a_device_that_has_failed_is_not_called_full() {
        let (device, knobs) = Knobs::device(Bytes::gib(1), OWN);
        let taken = || device.scope(|| Tensor::zeros(input())).map(drop);
        taken().unwrap();
        knobs.is_lost.store(true, Ordering::SeqCst);
        let refused = taken().unwrap_err();
        assert!(
            matches!(&refused, Error::Fault { .. }) && refused.to_string().contains("failed"),
            "{refused}"
        );
        knobs.is_lost.store(false, Ordering::SeqCst);
        knobs.total.store(OWN.get(), Ordering::SeqCst);
        let refused = taken().unwrap_err();
        assert!(matches!(&refused, Error::OutOfMemory(_)), "{refused}");
    }

    #[test]
    fn libraries_that_grow_are_noticed_and_planned_around() {
        let (device, knobs) = Knobs::device(Bytes::gib(1), OWN);
        let planned = step(&device, None).unwrap().info().planned;
        let mut step = step(&device, Some(planned)).unwrap();
        let first = run(&mut step, &device).unwrap();
        assert!(step.take_notice().is_none());
        let grown = step.info().account.program + Bytes::mib(3);
        knobs.own.store(grown.get(), Ordering::SeqCst);
        run(&mut step, &device).unwrap();
        let notice = step.take_notice().expect("it grew");
        assert!(notice.contains("3 MiB more than was declared"), "{notice}");
        assert!(step.info().planned <= planned && step.info().account.program > grown);
        assert!(device.taken().unwrap() <= planned);
        let (fresh, _) = Knobs::device(Bytes::gib(1), OWN);
        assert_eq!(run(&mut self::step(&fresh, None).unwrap(), &fresh).unwrap(), first);
        // Where nothing is left to do without, that is said.
        knobs.own.store(planned.get(), Ordering::SeqCst);
        let refused = (0..8).find_map(|_| run(&mut step, &device).err()).expect("the line cannot be kept");
        assert!(matches!(refused, Error::Infeasible { .. }), "{refused}");
    }
}
