//! Which of the values is whose, where ranks share them.

use std::ops::Range;

/// The shard of a rank: shares as even as whole values allow, the first ranks having one more, in the order of ranks.
///
/// ```
/// use plimsoll_graph::shard;
/// assert_eq!([shard(8, 3, 0), shard(8, 3, 1), shard(8, 3, 2)], [0..3, 3..6, 6..8]);
/// assert_eq!(shard(1, 3, 2), 1..1);
/// ```
pub const fn shard(len: usize, ranks: usize, rank: usize) -> Range<usize> {
    let (each, more) = (len / ranks, len % ranks);
    let before = if rank < more { rank } else { more };
    let start = each * rank + before;
    start..start + each + (rank < more) as usize
}
