//! Turns a part into lists: who is live in a section, and who is ever live together with whom.

use super::part::Part;

/// Two lists of lists, each as one array and the starts in it.
#[derive(Debug)]
pub(super) struct Index {
    members: Vec<u32>,
    member_starts: Vec<u32>,
    neighbours: Vec<u32>,
    neighbour_starts: Vec<u32>,
}

impl Index {
    /// How many entries the index of `part` has.
    pub fn entries(part: &Part) -> u64 {
        let mut entries = 0;
        let (mut first, mut last) = (part.first.clone(), part.last.clone());
        first.sort_unstable();
        last.sort_unstable();
        for b in 0..part.len() {
            let born = first.partition_point(|&first| first < part.last[b]);
            let dead = last.partition_point(|&last| last <= part.first[b]);
            entries += (born - dead + part.span(b).len()) as u64;
        }
        entries
    }

    pub fn new(part: &Part) -> Index {
        let sections = part.total.len();
        let mut member_starts = vec![0; sections + 1];
        for b in 0..part.len() {
            for section in part.span(b) {
                member_starts[section + 1] += 1;
            }
        }
        for section in 0..sections {
            member_starts[section + 1] += member_starts[section];
        }
        let mut next = member_starts.clone();
        let mut members = vec![0; member_starts[sections] as usize];
        for b in 0..part.len() {
            for section in part.span(b) {
                members[next[section] as usize] = b as u32;
                next[section] += 1;
            }
        }
        // The neighbours of an item are those live in its first section and those that start later in its span.
        let mut sorted: Vec<u32> = (0..part.len() as u32).collect();
        sorted.sort_by_key(|&b| part.first[b as usize]);
        let starts: Vec<usize> = (0..=sections as u32)
            .map(|section| sorted.partition_point(|&b| part.first[b as usize] < section))
            .collect();
        let mut neighbours = Vec::new();
        let mut neighbour_starts = vec![0];
        for b in 0..part.len() {
            let span = part.span(b);
            let there = member_starts[span.start] as usize..member_starts[span.start + 1] as usize;
            neighbours.extend(members[there].iter().copied().filter(|&j| j as usize != b));
            neighbours.extend_from_slice(&sorted[starts[span.start + 1]..starts[span.end]]);
            neighbour_starts.push(neighbours.len() as u32);
        }
        Index { members, member_starts, neighbours, neighbour_starts }
    }

    /// The items live in `section`.
    pub fn members(&self, section: usize) -> &[u32] {
        &self.members[self.member_starts[section] as usize..self.member_starts[section + 1] as usize]
    }

    /// The items live at some time together with `b`.
    pub fn neighbours(&self, b: usize) -> &[u32] {
        &self.neighbours[self.neighbour_starts[b] as usize..self.neighbour_starts[b + 1] as usize]
    }
}
