//! What is asked of the measurements.

use meridian_terminal::output;

/// Something that is asked.
#[derive(Clone, Debug)]
pub struct Bar {
    pub what: &'static str,
    pub measured: String,
    pub asked: String,
    pub met: bool,
}

/// Shows all.
///
/// # Errors
/// If they cannot be printed.
pub fn print(bars: &[Bar]) -> anyhow::Result<()> {
    if bars.is_empty() {
        return Ok(());
    }
    let row = |bar: &Bar| {
        let met = if bar.met { "met" } else { "missed" };
        vec![bar.what.into(), bar.measured.clone(), bar.asked.clone(), met.into()]
    };
    let head = ["bar", "measured", "asked", ""];
    output::print(&output::table(&head, bars.iter().map(row)))?;
    Ok(())
}
