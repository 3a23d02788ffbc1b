//! Equations of products along named axes, as NumPy, PyTorch and ONNX write them.

use plimsoll_run::Result;

use super::refuse;

/// An equation without `...`: the axes that the dots stand for, given operands of these ranks, get letters that are not in use. Blanks are
/// left out. Where the result is not named, it has the axes of the dots and then all letters that stand once, in their order.
#[track_caller]
pub fn without_dots(equation: &str, ranks: &[usize]) -> Result<String> {
    let plain: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    if !plain.contains("...") {
        return Ok(plain);
    }
    let (inputs, output) = match plain.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output.to_string())),
        None => (&plain[..], None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(refuse(format!("has {} operands for {equation:?}", ranks.len())));
    }
    let free: Vec<char> = ('a'..='z').chain('A'..='Z').filter(|c| !plain.contains(*c)).collect();
    let mut dotted = Vec::new();
    for (term, rank) in terms.iter().zip(ranks) {
        let letters = term.replace("...", "").chars().count();
        let n = if term.contains("...") { rank.checked_sub(letters) } else { Some(0) };
        dotted
            .push(n.ok_or_else(|| refuse(format!("names more axes in {term:?} than the {rank} there are")))?);
    }
    let most = dotted.iter().copied().max().unwrap_or(0);
    if most > free.len() {
        return Err(refuse("has more axes than letters"));
    }
    // Those of the dots that are there are the last.
    let named = |n: usize| free[most - n..most].iter().collect::<String>();
    let made: Vec<String> =
        terms.iter().zip(&dotted).map(|(term, &n)| term.replace("...", &named(n))).collect();
    let output = match output {
        Some(output) => output.replace("...", &named(most)),
        None => {
            let all: String = terms.concat().replace("...", "");
            let mut once: Vec<char> =
                all.chars().filter(|c| all.chars().filter(|other| other == c).count() == 1).collect();
            once.sort_unstable();
            named(most) + &once.into_iter().collect::<String>()
        }
    };
    Ok(format!("{}->{output}", made.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_become_letters_that_are_counted_from_the_last() {
        assert_eq!(without_dots("... i d, j d -> ... i j", &[4, 2]).unwrap(), "abid,jd->abij");
        assert_eq!(without_dots("...i,...i->...", &[3, 2]).unwrap(), "abi,bi->ab");
        assert_eq!(without_dots("ij->ji", &[2]).unwrap(), "ij->ji");
        assert_eq!(without_dots("...z,zy", &[3, 2]).unwrap(), "abz,zy->aby");
    }

    #[test]
    fn operands_that_do_not_go_with_an_equation_are_refused() {
        assert!(without_dots("...i,i", &[2]).unwrap_err().to_string().contains("has 1 operands"));
        assert!(without_dots("...ij", &[1]).unwrap_err().to_string().contains("names more axes"));
    }
}
