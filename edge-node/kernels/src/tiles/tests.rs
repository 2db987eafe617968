use super::*;
use crate::alone;

/// Numbers that look like chance.
fn chance(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// A matrix as a file would hold it: any bytes, with scales and offsets of ordinary size.
fn file(form: Blocks, rows: usize, width: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::new();
    for _ in 0..rows * width / BLOCK {
        let mut block: Vec<u8> = (0..form.bytes()).map(|_| chance(&mut state) as u8).collect();
        let mut half = || narrow((chance(&mut state) % 2_000) as f32 / 1e5 - 0.01).to_le_bytes();
        block[..2].copy_from_slice(&half());
        if matches!(form, Blocks::Q4_1 | Blocks::Q5_1) {
            block[2..4].copy_from_slice(&half());
        }
        bytes.extend(block);
    }
    bytes
}

/// The numbers in a block, by the definition of the format.
fn numbers(form: Blocks, block: &[u8]) -> Vec<f32> {
    let half = |at: usize| widen(u16::from_le_bytes([block[at], block[at + 1]]));
    let quant = |i: usize, from: usize| u32::from(if i < 16 { block[from + i] & 15 } else { block[from + i - 16] >> 4 });
    let fifth = |i: usize, from: usize| u32::from(block[from + i / 8] >> (i % 8) & 1) << 4;
    let number = |i: usize| match form {
        Blocks::Q4_0 => half(0) * (quant(i, 2) as f32 - 8.0),
        Blocks::Q4_1 => half(0) * quant(i, 4) as f32 + half(2),
        Blocks::Q5_0 => half(0) * ((quant(i, 6) | fifth(i, 2)) as f32 - 16.0),
        Blocks::Q5_1 => half(0) * (quant(i, 8) | fifth(i, 4)) as f32 + half(2),
        Blocks::Q8_0 => half(0) * f32::from(block[2 + i] as i8),
    };
    (0..BLOCK).map(number).collect()
}

fn input(rows: usize, width: usize) -> Vec<f32> {
    (0..rows * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect()
}

const FORMS: [Blocks; 5] = [Blocks::Q4_0, Blocks::Q4_1, Blocks::Q5_0, Blocks::Q5_1, Blocks::Q8_0];

#[test]
fn a_matrix_is_held_as_the_file_means_it_and_multiplies_nearly_exactly() {
    for form in FORMS {
        let (rows, width) = (37, 96);
        let bytes = file(form, rows, width, 5);
        let tiles = Tiles::pack(form, &bytes, rows, width).expect("fits");
        assert_eq!(tiles.bytes() as u64, form.tiled_bytes(rows, width));
        let exact: Vec<Vec<f32>> = bytes
            .chunks(form.bytes() * width / BLOCK)
            .map(|row| row.chunks(form.bytes()).flat_map(|b| numbers(form, b)).collect())
            .collect();
        for (row, exact) in exact.iter().enumerate() {
            let mut unpacked = vec![0.0; width];
            tiles.unpack_row(row, &mut unpacked);
            assert!(exact.iter().zip(&unpacked).all(|(a, b)| (a - b).abs() < 1e-5), "{form:?}");
        }
        let input = input(3, width);
        let mut out = vec![f32::NAN; 3 * rows];
        tiles.multiply(&Activations::new(&input, width), &mut out, &alone);
        for (x, out) in input.chunks(width).zip(out.chunks(rows)) {
            for (row, out) in exact.iter().zip(out) {
                let expected: f32 = x.iter().zip(row).map(|(x, w)| x * w).sum();
                let size: f32 = x.iter().zip(row).map(|(x, w)| (x * w).abs()).sum();
                assert!((expected - out).abs() < 0.01 * size + 1e-4, "{form:?}: {expected} {out}");
            }
        }
    }
}

#[test]
fn each_row_is_the_same_alone_among_others_and_with_any_instructions() {
    for form in FORMS {
        let (rows, width) = (33, 160);
        let tiles = Tiles::pack(form, &file(form, rows, width, 9), rows, width).expect("fits");
        let input = input(19, width);
        let run = |level: Level, x: &[f32]| {
            let mut out = vec![f32::NAN; x.len() / width * rows];
            tiles.multiply_at(level, &Activations::new(x, width), &mut out, &alone);
            out
        };
        let expected: Vec<f32> = input.chunks(width).flat_map(|row| run(Level::Plain, row)).collect();
        assert!(expected.iter().all(|x| x.is_finite()));
        for level in [Level::Plain, Level::Avx2, Level::Avx512].into_iter().filter(|l| *l <= level()) {
            for together in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 19] {
                let out: Vec<f32> = input.chunks(together * width).flat_map(|rows| run(level, rows)).collect();
                assert!(out == expected, "{form:?}, {level:?}, {together} at once");
            }
        }
    }
}

#[test]
fn pieces_by_several_threads_are_the_whole() {
    let (rows, width) = (100, 64);
    let tiles = Tiles::pack(Blocks::Q8_0, &file(Blocks::Q8_0, rows, width, 2), rows, width).expect("fits");
    let activations = Activations::new(&input(5, width), width);
    let (mut together, mut apart) = (vec![0.0; 5 * rows], vec![0.0; 5 * rows]);
    tiles.multiply(&activations, &mut together, &alone);
    tiles.multiply(&activations, &mut apart, &|count, piece| {
        std::thread::scope(|scope| {
            for at in 0..count {
                scope.spawn(move || piece(at..at + 1));
            }
        });
    });
    assert!(together == apart);
}

#[test]
fn bytes_of_another_size_are_refused() {
    assert!(Tiles::pack(Blocks::Q8_0, &[0; 33], 1, 32).is_err());
    assert!(Tiles::pack(Blocks::Q8_0, &[0; 34], 1, 31).is_err());
    assert!(Tiles::pack(Blocks::Q8_0, &[], 0, 0).is_err());
}
