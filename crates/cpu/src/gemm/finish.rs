//! What the micro-kernels of both vector widths do alike, over the instructions of each: the end of a tile and the table of tiles.

/// Adds what C holds and the bias to the sums of a tile of `H` rows of `V` vectors, applies relu and stores them.
///
/// The last vector of a row is read and written under its mask.
macro_rules! finish_tile {
    (
        $t:ident, $acc:ident, $masks:ident, $lanes:literal, $h:ident, $v:ident,
        $zero:path, $add:path, $max:path, $load:path, $store:path, $store_whole:path
    ) => {
        if $t.accumulate {
            for i in 0..$h {
                let c = $t.c.add(*$t.rows.add(i));
                for v in 0..$v {
                    $acc[i][v] = $add($acc[i][v], $load(c.add($lanes * v), $masks[v]));
                }
            }
        }
        if !$t.bias.is_null() {
            for v in 0..$v {
                let bias = $load($t.bias.add($lanes * v), $masks[v]);
                for i in 0..$h {
                    $acc[i][v] = $add($acc[i][v], bias);
                }
            }
        }
        if $t.relu {
            for i in 0..$h {
                for v in 0..$v {
                    // In this order a NaN stays a NaN.
                    $acc[i][v] = $max($zero(), $acc[i][v]);
                }
            }
        }
        if $t.cols == $lanes * $v {
            for i in 0..$h {
                let c = $t.c.add(*$t.rows.add(i));
                for v in 0..$v {
                    $store_whole(c.add($lanes * v), $acc[i][v]);
                }
            }
        } else {
            for i in 0..$h {
                let c = $t.c.add(*$t.rows.add(i));
                for v in 0..$v {
                    $store(c.add($lanes * v), $masks[v], $acc[i][v]);
                }
            }
        }
    };
}

/// The tiles of the given numbers of rows, of one vector and of two.
macro_rules! kernels {
    ($by_row:literal: $($h:literal)*) => { [$([tile::<$h, 1, $by_row> as TileFn, tile::<$h, 2, $by_row>]),*] };
}

pub(super) use {finish_tile, kernels};
