//! Findings about a machine or a configuration, and their remedies.

use serde::Serialize;

/// The level of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Good,
    /// A thing that works, but perhaps not as well as it could, or not now.
    Warning,
    /// A thing that does not work.
    Bad,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) text: String,
    /// The action that mends it.
    pub(super) remedy: Option<String>,
}

/// Findings that belong together: those of a fabric, or of the configuration.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Area {
    pub(super) name: &'static str,
    /// The use of the fabric; empty for the configuration.
    #[serde(skip)]
    purpose: &'static str,
    usable: bool,
    pub(super) findings: Vec<Finding>,
}

impl Area {
    pub(super) fn new(name: &'static str, purpose: &'static str) -> Area {
        Area { name, purpose, usable: true, findings: Vec::new() }
    }

    pub(super) fn push(&mut self, level: Level, text: impl Into<String>, remedy: Option<String>) {
        self.usable &= level != Level::Bad;
        self.findings.push(Finding { level, text: text.into(), remedy });
    }

    pub(super) fn good(&mut self, text: impl Into<String>) {
        self.push(Level::Good, text, None);
    }

    pub(super) fn warn(&mut self, text: impl Into<String>, remedy: impl Into<String>) {
        self.push(Level::Warning, text, Some(remedy.into()));
    }

    pub(super) fn bad(&mut self, text: impl Into<String>, remedy: impl Into<String>) {
        self.push(Level::Bad, text, Some(remedy.into()));
    }

    pub(super) fn usable(&self) -> bool {
        self.usable
    }

    /// The text for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let verdict = match (self.name, self.usable()) {
            ("configuration", true) => "is possible here",
            ("configuration", false) => "is NOT possible here",
            (_, true) => "can be used",
            (_, false) => "can NOT be used",
        };
        let purpose = if self.purpose.is_empty() { String::new() } else { format!(" ({})", self.purpose) };
        let mut lines = vec![format!("{}{purpose} {verdict}", self.name)];
        for finding in &self.findings {
            let mark = match finding.level {
                Level::Good => "  ok  ",
                Level::Warning => "  note",
                Level::Bad => "  NO  ",
            };
            lines.push(format!("{mark}  {}", finding.text));
            lines.extend(finding.remedy.iter().map(|remedy| format!("        {remedy}")));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_shown_with_its_remedy() {
        let mut area = Area::new("tcp", "other hosts");
        area.good("loopback works");
        area.warn("buffers are small", "raise them");
        assert!(area.usable());
        assert_eq!(area.lines()[0], "tcp (other hosts) can be used");
        area.bad("there is no network", "plug it in");
        assert!(!area.usable());
        let lines = area.lines();
        assert_eq!(lines[0], "tcp (other hosts) can NOT be used");
        assert_eq!(lines[4..], ["  NO    there is no network", "        plug it in"]);
    }
}
