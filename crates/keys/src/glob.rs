//! Patterns over keys: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a byte that is meant as it is.

/// Whether `text` matches `pattern` as a whole. Takes at most the product of both lengths: after a
/// byte that does not match, only the last star is asked for more.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, place));
            at += 1;
            continue;
        }
        if place == text.len() {
            if at == pattern.len() {
                return true;
            }
        } else if let Some(next) = one(pattern, at, text[place]) {
            (at, place) = (next, place + 1);
            continue;
        }
        // The last star takes one byte more.
        match star {
            Some((after, taken)) if taken < text.len() => {
                star = Some((after, taken + 1));
                (at, place) = (after, taken + 1);
            }
            _ => return false,
        }
    }
}

/// Where the pattern goes on, if what stands at `at` matches `byte`.
fn one(pattern: &[u8], at: usize, byte: u8) -> Option<usize> {
    match *pattern.get(at)? {
        b'?' => Some(at + 1),
        b'[' => class(pattern, at + 1, byte),
        b'\\' if at + 1 < pattern.len() => (pattern[at + 1] == byte).then_some(at + 2),
        meant => (meant == byte).then_some(at + 1),
    }
}

/// Bytes and ranges up to a closing bracket, or to the pattern's end.
fn class(pattern: &[u8], mut at: usize, byte: u8) -> Option<usize> {
    let is_negated = pattern.get(at) == Some(&b'^');
    at += usize::from(is_negated);
    let mut is_in = false;
    loop {
        match pattern.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', meant, ..] => {
                is_in |= *meant == byte;
                at += 2;
            }
            [first, b'-', last, ..] if *last != b']' => {
                is_in |= (*first.min(last)..=*first.max(last)).contains(&byte);
                at += 3;
            }
            [meant, ..] => {
                is_in |= *meant == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by trying everything.
    fn by_trying(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.first(), text.first()) {
            (None, None) => true,
            (Some(b'*'), _) => {
                (0..=text.len()).any(|taken| by_trying(&pattern[1..], &text[taken..]))
            }
            (Some(_), Some(byte)) => {
                one(pattern, 0, *byte).is_some_and(|next| by_trying(&pattern[next..], &text[1..]))
            }
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn stars_take_what_trying_everything_takes(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text), by_trying(pattern, text));
        }

        #[test]
        fn no_pattern_panics(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text);
        }
    }

    #[test]
    fn patterns_mean_what_they_say() {
        let cases = [
            ("user:*", "user:1", true),
            ("user:*", "used:1", false),
            ("h?llo", "hello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-]llo", "h-llo", true),
            (r"a\*b", "a*b", true),
            (r"a\*b", "axb", false),
            (r"[\]]", "]", true),
            ("[", "a", false),
            ("", "", true),
            ("*", "", true),
            ("*a*b*c", "xxaxxbxxbc", true),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends() {
        let (pattern, text) = ("a*".repeat(1_000) + "b", "a".repeat(20_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
