//! Half-precision numbers as their bits.

/// From half precision; exact.
#[must_use]
#[inline]
pub fn widen(bits: u16) -> f32 {
    // The exponent's bias differs by 112, which a multiplication corrects for small numbers too.
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    if rest >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (rest & 0x3ff) << 13);
    }
    let scaled = f32::from_bits(rest << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | scaled.to_bits())
}

/// To half precision: the nearest, the even one of two equally near; the largest number for what is larger still.
#[must_use]
#[inline]
pub fn narrow(number: f32) -> u16 {
    let bits = number.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let rest = bits & 0x7fff_ffff;
    if rest > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    let largest = 65_504.0_f32;
    let size = f32::from_bits(rest).min(largest);
    if size < f32::from_bits((127 - 14) << 23) {
        // Below the smallest normal one: adding a number whose last place is the half format's smallest rounds.
        let magic = f32::from_bits((127 - 14 + 13) << 23);
        return sign | ((size + magic).to_bits() - magic.to_bits()) as u16;
    }
    let bits = size.to_bits();
    let rounded = bits + 0xfff + (bits >> 13 & 1);
    sign | (((rounded >> 13) - (112 << 10)) as u16).min(0x7bff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back() {
        for bits in 0..=u16::MAX {
            let wide = widen(bits);
            if wide.is_nan() {
                assert!(widen(narrow(wide)).is_nan());
            } else if wide.is_finite() {
                assert_eq!(narrow(wide), bits, "{wide}");
            }
        }
        assert_eq!(widen(0x3c00), 1.0);
        assert_eq!(widen(0x7c00), f32::INFINITY);
    }

    #[test]
    fn rounding_is_to_the_nearest() {
        assert_eq!(widen(narrow(1e9)), 65_504.0);
        assert_eq!(widen(narrow(-1e-9)), 0.0);
        for (number, nearest) in [(1.0 + 1.0 / 2_048.0, 1.0), (1.0 + 3.0 / 2_048.0, 1.0 + 4.0 / 2_048.0), (0.1, 0.099_975_586)] {
            assert_eq!(widen(narrow(number)), nearest, "{number}");
        }
    }
}
