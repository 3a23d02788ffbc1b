//! Turns the measured kernel times of one card into those of another that is known by its datasheet.
//!
//! The model: a kernel reaches as much of what holds it back (operations a second, or bytes a second) as it did on the card where it was measured.
//! What holds it back is what its work would take longer for there. Scratch is the same.

use plimsoll::ranks::Machine;

/// What the measured card's datasheet says: what other cards' records say of them.
const H200_FLOPS_16: f64 = 9.895e14;
const H200_FLOPS_F32: f64 = 6.7e13;
const H200_BANDWIDTH: f64 = 4.8e12;

/// The record of kernel times of an H200 as that of another machine's card.
pub fn scaled(h200: &str, to: &Machine) -> String {
    let lines = h200.lines().map(|line| scaled_line(line, to).unwrap_or_else(|| line.to_string()));
    lines.map(|line| line + "\n").collect()
}

fn scaled_line(line: &str, to: &Machine) -> Option<String> {
    let mut fields = line.split('\t');
    let first = fields.next()?;
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<f64>().ok());
    match first {
        "signature" => Some(format!("signature\tcuda {} scaled from an H200", to.name)),
        "total" => Some(format!("total\t{}", to.memory)),
        "speed" => {
            let (flops, bytes, call) =
                (number(fields.next())?, number(fields.next())?, number(fields.next())?);
            let flops = flops / H200_FLOPS_F32 * to.flops_f32;
            let bytes = bytes / H200_BANDWIDTH * to.memory_bandwidth;
            Some(format!("speed\t{flops:e}\t{bytes:e}\t{call:e}"))
        }
        ns => {
            // A sign behind the time says how far it is to be trusted.
            let digits = ns.find(|c: char| !c.is_ascii_digit()).unwrap_or(ns.len());
            let (ns, sign) = (ns[..digits].parse::<f64>().ok()?, &ns[digits..]);
            let scratch = fields.next()?;
            let (flops, bytes) = (number(fields.next())?, number(fields.next())?);
            let key: Vec<&str> = fields.collect();
            let key = key.join("\t");
            let is_narrow = key.contains("f16[");
            let (had, has) = match is_narrow {
                true => (H200_FLOPS_16, to.flops_16),
                false => (H200_FLOPS_F32, to.flops_f32),
            };
            let is_computing = flops / had > bytes / H200_BANDWIDTH;
            let slower = if is_computing { had / has } else { H200_BANDWIDTH / to.memory_bandwidth };
            Some(format!("{:.0}{sign}\t{scratch}\t{flops:e}\t{bytes:e}\t{key}", (ns * slower).max(1.0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_is_slower_by_what_holds_it_back() {
        let a100 = Machine::known("a100-80g").unwrap();
        let text = "plimsoll kernel times 3\nsignature\tcuda H200\nspeed\t6.7e13\t4.8e12\t4e-6\ntotal\t1\npage\t2097152\nown\t5\n\
                    1000\t260\t1e12\t1e6\tMatMul bf16[8]\n1000~2\t0\t1e3\t1e9\tUnary(Exp) bf16[8]\n1000\t0\t1e12\t1e6\tMatMul f32[8]\n";
        let lines: Vec<String> = scaled(text, &a100).lines().map(String::from).collect();
        let of = |i: usize| lines[i].split('\t').next().unwrap().to_string();
        assert_eq!(of(6), "3171", "{lines:?}");
        assert_eq!(of(7), "2354~2");
        assert_eq!(of(8), "3436");
        assert_eq!(lines[3], format!("total\t{}", a100.memory));
        assert!(lines[2].starts_with("speed\t1.95e13\t2.039e12\t"), "{}", lines[2]);
        assert_eq!((lines[0].as_str(), lines[4].as_str()), ("plimsoll kernel times 3", "page\t2097152"));
    }
}
