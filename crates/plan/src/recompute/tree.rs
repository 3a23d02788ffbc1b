//! Keeps the memory of every stage under range additions, and finds the worst stage of a range.

/// A segment tree for range-add and range-max over signed bytes.
#[derive(Clone, Debug)]
pub(crate) struct MaxTree {
    leaves: usize,
    /// Maximum below each node, its own pending addition included.
    max: Vec<i64>,
    /// Addition pending for everything below each node.
    add: Vec<i64>,
}

impl MaxTree {
    pub fn new(values: &[i64]) -> MaxTree {
        let leaves = values.len().next_power_of_two().max(1);
        let mut max = vec![i64::MIN / 4; 2 * leaves];
        max[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            max[node] = max[2 * node].max(max[2 * node + 1]);
        }
        MaxTree { leaves, max, add: vec![0; 2 * leaves] }
    }

    /// Adds `value` to positions `from..=to`; an empty range if `from > to`.
    pub fn add(&mut self, from: u32, to: u32, value: i64) {
        if from > to || value == 0 {
            return;
        }
        let (mut l, mut r) = (from as usize + self.leaves, to as usize + self.leaves + 1);
        let (l0, r0) = (l, r - 1);
        while l < r {
            if l & 1 == 1 {
                self.max[l] += value;
                self.add[l] += value;
                l += 1;
            }
            if r & 1 == 1 {
                r -= 1;
                self.max[r] += value;
                self.add[r] += value;
            }
            l >>= 1;
            r >>= 1;
        }
        // The ways up from both ends. All that was added to lies at or below where they meet; above that, what is as it was
        // leaves everything further up as it was.
        let (mut l, mut r) = (l0 >> 1, r0 >> 1);
        while l != r {
            self.rebuild(l);
            self.rebuild(r);
            l >>= 1;
            r >>= 1;
        }
        let meeting = l;
        while l >= 1 && (self.rebuild(l) || l == meeting) {
            l >>= 1;
        }
    }

    /// Finds the maximum below a node again; false if it is as it was.
    fn rebuild(&mut self, node: usize) -> bool {
        let max = self.max[2 * node].max(self.max[2 * node + 1]) + self.add[node];
        std::mem::replace(&mut self.max[node], max) != max
    }

    /// The largest value of all.
    pub fn top(&self) -> i64 {
        self.max[1]
    }

    /// The largest value in `from..=to`; very small if the range is empty.
    pub fn max(&self, from: u32, to: u32) -> i64 {
        if from > to {
            return i64::MIN / 4;
        }
        // Upwards from both ends: the nodes taken on the left all lie under node `l - 1`, those on the right under
        // node `r`, so one pending addition a level and side makes them whole.
        let (mut l, mut r) = (from as usize + self.leaves, to as usize + self.leaves + 1);
        let (mut left, mut right) = (i64::MIN / 4, i64::MIN / 4);
        while l < r {
            if l & 1 == 1 {
                left = left.max(self.max[l]);
                l += 1;
            }
            if r & 1 == 1 {
                r -= 1;
                right = right.max(self.max[r]);
            }
            l >>= 1;
            r >>= 1;
            left += self.add[l - 1];
            right += self.add[r];
        }
        (l, r) = ((l - 1) >> 1, r >> 1);
        while l > 0 || r > 0 {
            left += self.add[l];
            right += self.add[r];
            l >>= 1;
            r >>= 1;
        }
        left.max(right)
    }

    /// The first position that holds the largest value of all.
    pub fn worst(&self) -> u32 {
        let mut node = 1;
        while node < self.leaves {
            let wanted = self.max[node] - self.add[node];
            node = if self.max[2 * node] == wanted { 2 * node } else { 2 * node + 1 };
        }
        (node - self.leaves) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_agrees_with_a_plain_array() {
        let mut plain: Vec<i64> = (0..37).map(|i| (i * 7919) % 101).collect();
        let mut tree = MaxTree::new(&plain);
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..500 {
            let (a, b) = (next(37) as usize, next(37) as usize);
            let (from, to, value) = (a.min(b), a.max(b), next(200) as i64 - 100);
            plain[from..=to].iter_mut().for_each(|p| *p += value);
            tree.add(from as u32, to as u32, value);
            let top = *plain.iter().max().unwrap();
            assert_eq!(tree.top(), top);
            assert_eq!(tree.worst() as usize, plain.iter().position(|&p| p == top).unwrap());
            let (a, b) = (next(37) as usize, next(37) as usize);
            let part = &plain[a.min(b)..=a.max(b)];
            assert_eq!(tree.max(a.min(b) as u32, a.max(b) as u32), *part.iter().max().unwrap());
        }
    }
}
