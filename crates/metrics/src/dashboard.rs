//! The dashboard: one page, which asks `/status.json` once a second and draws what it is told.
//!
//! It uses nothing from elsewhere, and the browser is told so ([`POLICY`]). All that nodes say is
//! put into it as text.

/// The page.
pub const PAGE: &str = include_str!("dashboard.html");

/// What it may do: run its own script, and ask where it came from.
pub const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
    script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";
