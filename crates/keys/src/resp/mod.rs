//! RESP, the protocol of Redis clients, versions 2 and 3: requests are read incrementally within
//! stated limits, replies are written for the version that a connection speaks.

pub mod answer;
mod inline;
mod reply;
mod request;

pub use reply::{Reply, Version};
pub use request::{ARGUMENTS_MAX, BULK_MAX, INLINE_MAX, ProtocolError, REQUEST_MAX};
pub use request::{Request, Requests};

/// The integer that `text` spells, in the one way in which it is written: no plus sign, no leading
/// zeros, no "-0".
pub fn integer(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let is_canonical = match digits {
        [] => false,
        [b'0', rest @ ..] => rest.is_empty() && !is_negative,
        _ => true,
    };
    if !is_canonical || digits.len() > 19 {
        return None;
    }
    let mut value: i64 = 0;
    for digit in digits {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return None;
        }
        // Below zero, so that the lowest number needs no case of its own.
        value = value.checked_mul(10)?.checked_sub(digit)?;
    }
    if is_negative { Some(value) } else { value.checked_neg() }
}

/// Writes `value` in decimal.
pub fn write_integer(value: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_integer_is_read_as_it_was_written(value: i64) {
            let mut text = Vec::new();
            write_integer(value, &mut text);
            prop_assert_eq!(&text, &value.to_string().into_bytes());
            prop_assert_eq!(integer(&text), Some(value));
        }
    }

    #[test]
    fn integers_are_written_in_one_way_only() {
        for text in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1a", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(integer(b"-9223372036854775809"), None);
    }
}
