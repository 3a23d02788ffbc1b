//! Finds how much can flow through a graph, and so the least that a cut of it costs.

use crate::steps::count;

/// Flow that no cut is worth.
pub(crate) const ENDLESS: i64 = i64::MAX / 4;

/// A graph with capacities, for the largest flow by shortest ways (Dinitz).
pub(crate) struct Flow {
    arcs: Vec<(u32, u32, i64)>,
    start: Vec<u32>,
    /// For each node in turn its arcs: to, left, and where the arc back is.
    to: Vec<(u32, i64, u32)>,
    /// How far each node is from the source; below zero if it is not reached.
    pub level: Vec<i32>,
    /// How many arcs were looked at.
    pub work: u64,
}

impl Flow {
    pub fn new(nodes: usize) -> Flow {
        Flow { arcs: Vec::new(), start: vec![0; nodes + 1], to: Vec::new(), level: vec![-1; nodes], work: 0 }
    }

    pub fn arc(&mut self, from: u32, to: u32, most: i64) {
        self.arcs.push((from, to, most));
    }

    /// Sorts the arcs by node; none may follow.
    pub fn close(&mut self) {
        for &(from, to, _) in &self.arcs {
            self.start[from as usize + 1] += 1;
            self.start[to as usize + 1] += 1;
        }
        (1..self.start.len()).for_each(|n| self.start[n] += self.start[n - 1]);
        let mut next = self.start.clone();
        self.to = vec![(0, 0, 0); 2 * self.arcs.len()];
        for &(from, to, most) in &self.arcs {
            let (there, back) = (next[from as usize], next[to as usize]);
            self.to[there as usize] = (to, most, back);
            self.to[back as usize] = (from, 0, there);
            next[from as usize] += 1;
            next[to as usize] += 1;
        }
        self.work += 4 * self.arcs.len() as u64;
    }

    /// The largest flow, and whether it is that; not if more than `most` arcs would have to be looked at.
    pub fn largest(&mut self, source: u32, sink: u32, most: u64) -> (i64, bool) {
        let before = self.work;
        let found = self.flow(source, sink, most);
        count(self.work - before);
        found
    }

    fn flow(&mut self, source: u32, sink: u32, most: u64) -> (i64, bool) {
        let mut sum = 0;
        let mut way: Vec<u32> = Vec::new();
        while self.reach(source, sink) {
            let mut next = self.start.clone();
            let mut node = source;
            way.clear();
            loop {
                if self.work > most {
                    return (sum, false);
                }
                if node == sink {
                    let least = way.iter().map(|&arc| self.to[arc as usize].1).min().unwrap_or(0);
                    sum += least;
                    // The next way starts where this one is used up first.
                    let mut keep = way.len();
                    for (k, &arc) in way.iter().enumerate().rev() {
                        let (_, left, back) = &mut self.to[arc as usize];
                        *left -= least;
                        let (left, back) = (*left, *back);
                        self.to[back as usize].1 += least;
                        if left == 0 {
                            keep = k;
                        }
                    }
                    self.work += way.len() as u64;
                    node = way.get(keep).map_or(sink, |&arc| self.to[self.to[arc as usize].2 as usize].0);
                    way.truncate(keep);
                    continue;
                }
                let (at, end) = (next[node as usize], self.start[node as usize + 1]);
                if at == end {
                    let Some(arc) = way.pop() else { break };
                    node = self.to[self.to[arc as usize].2 as usize].0;
                    next[node as usize] += 1;
                    continue;
                }
                self.work += 1;
                let (to, left, _) = self.to[at as usize];
                if left > 0 && self.level[to as usize] == self.level[node as usize] + 1 {
                    way.push(at);
                    node = to;
                } else {
                    next[node as usize] += 1;
                }
            }
        }
        (sum, true)
    }

    /// Finds how far each node is from the source; false if the sink is out of reach.
    fn reach(&mut self, source: u32, sink: u32) -> bool {
        self.level.iter_mut().for_each(|level| *level = -1);
        self.level[source as usize] = 0;
        let mut line = vec![source];
        let mut first = 0;
        while let Some(&node) = line.get(first) {
            first += 1;
            for arc in self.start[node as usize]..self.start[node as usize + 1] {
                let (to, left, _) = self.to[arc as usize];
                self.work += 1;
                if left > 0 && self.level[to as usize] < 0 {
                    self.level[to as usize] = self.level[node as usize] + 1;
                    line.push(to);
                }
            }
        }
        self.level[sink as usize] >= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ways from 0 to 3, with a bridge between them that the largest flow must take back.
    fn bridged() -> Flow {
        let mut flow = Flow::new(4);
        let arcs = [(0, 1, 5), (0, 2, 4), (1, 2, 3), (1, 3, 2), (2, 3, 6)];
        arcs.into_iter().for_each(|(from, to, most)| flow.arc(from, to, most));
        flow.close();
        flow
    }

    #[test]
    fn the_largest_flow_is_the_least_cut() {
        let mut flow = bridged();
        assert_eq!(flow.largest(0, 3, u64::MAX), (8, true));
        // What the source still reaches is its side of the cut: the arcs into 3 are all used up.
        assert_eq!(flow.level.iter().map(|&level| level >= 0).collect::<Vec<_>>(), [true, true, true, false]);
    }

    #[test]
    fn a_flow_that_is_cut_short_says_so() {
        for most in 0..60 {
            let (sum, is_most) = bridged().largest(0, 3, most);
            assert!(sum <= 8 && (sum == 8 || !is_most), "{most}: {sum}");
        }
        assert!(!bridged().largest(0, 3, 0).1);
    }
}
