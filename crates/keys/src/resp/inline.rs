//! Requests as people type them: words between blanks, with quotes.

use super::request::Argument;

/// Splits `line`, which begins at `offset` of a buffer, into words; escapes are resolved in place.
/// None if a quote is not closed, or something follows a closing quote at once.
pub(super) fn split(line: &mut [u8], offset: usize, words: &mut Vec<Argument>) -> Option<()> {
    let mut read = 0;
    loop {
        while read < line.len() && is_blank(line[read]) {
            read += 1;
        }
        if read == line.len() {
            return Some(());
        }
        // Escapes are longer than what they mean: nothing is written over what is not read yet.
        let (start, mut write) = (read, read);
        while read < line.len() && !is_blank(line[read]) {
            match line[read] {
                quote @ (b'"' | b'\'') => {
                    read = unquote(line, read + 1, quote, &mut write)?;
                    if read < line.len() && !is_blank(line[read]) {
                        return None;
                    }
                }
                byte => {
                    line[write] = byte;
                    (read, write) = (read + 1, write + 1);
                }
            }
        }
        words.push(Argument::new(offset + start, write - start));
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0)
}

/// Copies from `read` up to the closing quote to `write`; the place after the quote.
fn unquote(line: &mut [u8], mut read: usize, quote: u8, write: &mut usize) -> Option<usize> {
    loop {
        let byte = *line.get(read)?;
        read += 1;
        let meant = match byte {
            byte if byte == quote => return Some(read),
            b'\\' if quote == b'"' => {
                let escaped = *line.get(read)?;
                read += 1;
                match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'a' => 7,
                    b'b' => 8,
                    b'x' => match (hex(line.get(read)), hex(line.get(read + 1))) {
                        (Some(high), Some(low)) => {
                            read += 2;
                            high << 4 | low
                        }
                        _ => b'x',
                    },
                    other => other,
                }
            }
            b'\\' if line.get(read) == Some(&b'\'') => {
                read += 1;
                b'\''
            }
            byte => byte,
        };
        line[*write] = meant;
        *write += 1;
    }
}

fn hex(digit: Option<&u8>) -> Option<u8> {
    char::from(*digit?).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
