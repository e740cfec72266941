//! Certificates of Open vSwitch for TLS with controllers: one row for all bridges of a database.

use super::Planner;
use crate::observation::observed::{OWNER_KEY, text};
use crate::planning::change::Change;
use crate::planning::desired;
use crate::planning::problem::Problem;

impl Planner<'_> {
    pub(super) fn tls(&mut self) {
        if !desired::needs_tls(self.config) {
            return self.leftover_tls();
        }
        let Some(folder) = &self.observed.tls else {
            self.problems.push(Problem::NoCertificates);
            return;
        };
        if let Some(file) = &folder.unreadable {
            self.problems.push(Problem::UnreadableCertificates { file: file.clone() });
        }
        let row = desired::tls_row(self.config.site_id, &folder.path);
        let current = self.observed.ssl.clone().unwrap_or_default();
        if row.iter().any(|(column, value)| text(&current, column) != value) {
            self.phases.database.push(Change::SetTls { row });
        }
    }

    /// Remove certificates that this program has set and that no controller needs.
    fn leftover_tls(&mut self) {
        let owner = self.config.site_id.to_string();
        if self.observed.ssl.as_ref().is_some_and(|row| text(row, OWNER_KEY) == owner) {
            self.phases.database.push(Change::RemoveTls);
        }
    }
}
