//! What a figure of a document states, beside what the model gives.

use serde::Serialize;

/// Whether machines of the core take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Only modelled hardware does: this shows that the parts are right.
    Hardware,
    /// They do: this shows that the protocol is.
    Protocol,
}

/// A document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Document {
    /// Remote resources of ARM microservers.
    Micro,
    /// Classes of service of an RDMA engine.
    Qos,
    /// Page faults during RDMA.
    Fault,
    /// Remote memory of disaggregated platforms.
    Remap,
    /// Sockets Direct over a bridge between buses.
    Sdp,
}

impl Document {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Micro => "MICRO",
            Self::Qos => "QOS",
            Self::Fault => "FAULT",
            Self::Remap => "REMAP",
            Self::Sdp => "SDP",
        }
    }
}

/// What a number counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A constant was chosen so that it comes out.
    Fitted,
    /// It was not, and is scored.
    Predicted,
    /// It follows from one formula, or the document contradicts itself: it is shown.
    Shown,
}

/// A number that a document states.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Number {
    /// What it is.
    pub what: String,
    /// What the document says.
    pub stated: f64,
    /// What the model gives.
    pub found: f64,
    /// In what.
    pub unit: &'static str,
    /// What it counts for.
    pub role: Role,
    /// Why it differs, if that is known.
    pub note: Option<&'static str>,
}

impl Number {
    /// What a document states of something, and what the model gives.
    pub(super) fn of(
        what: impl Into<String>,
        stated: f64,
        found: f64,
        unit: &'static str,
        role: Role,
        note: Option<&'static str>,
    ) -> Self {
        Self { what: what.into(), stated, found, unit, role, note }
    }

    /// By how much the model differs, in percent of what is stated.
    pub fn error_percent(&self) -> f64 {
        (self.found - self.stated) * 100.0 / self.stated
    }
}

/// A sentence of a document that is true or false: an order, a crossing, a bound.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// The sentence.
    pub what: String,
    /// What the model gives, in words.
    pub found: String,
    /// Whether that agrees.
    pub holds: bool,
    /// Why it does not, if that is known.
    pub note: Option<&'static str>,
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A plot in the axes of the document.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// The axes.
    pub axes: (&'static str, &'static str),
    /// Whether the horizontal axis is of powers of two, and the vertical one of powers of ten.
    pub is_logarithmic: (bool, bool),
    /// What the model gives.
    pub curves: Vec<Curve>,
    /// What the document states.
    pub marks: Vec<(f64, f64)>,
}

/// What reports of a chapter have in common.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) document: Document,
    pub(super) class: Class,
    pub(super) platform: &'static str,
}

impl Kind {
    /// A report without numbers, claims or plots yet.
    pub(super) fn report(
        self,
        id: &'static str,
        title: &'static str,
        section: &'static str,
        mechanism: &'static str,
    ) -> Report {
        let Self { document, class, platform } = self;
        let (numbers, claims, plots) = (Vec::new(), Vec::new(), Vec::new());
        Report { id, document, title, section, class, platform, mechanism, numbers, claims, plots }
    }
}

/// A figure, as the model gives it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Its id.
    pub id: &'static str,
    /// Its document.
    pub document: Document,
    /// What it is about.
    pub title: &'static str,
    /// Where it stands.
    pub section: &'static str,
    /// Whether machines of the core take part.
    pub class: Class,
    /// The platform.
    pub platform: &'static str,
    /// What produces it.
    pub mechanism: &'static str,
    /// Numbers.
    pub numbers: Vec<Number>,
    /// Orders, crossings, bounds.
    pub claims: Vec<Claim>,
    /// Plots.
    pub plots: Vec<Plot>,
}

/// What a set of reports comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Score {
    /// Numbers that constants were fitted to.
    pub fitted: usize,
    /// Those that the model misses by more than 1 %.
    pub misfits: usize,
    /// Numbers that were predicted.
    pub predicted: usize,
    /// The median of their errors, in percent.
    pub median_error_percent: Option<f64>,
    /// Those that are off by more than 30 %, and without a note.
    pub unexplained: usize,
    /// Claims.
    pub claims: usize,
    /// Claims that hold.
    pub hold: usize,
    /// Claims that do not hold, and without a note.
    pub unexplained_claims: usize,
}

/// An error beyond which a number needs a note, in percent.
const MOST_PERCENT: f64 = 30.0;
/// An error beyond which a fit is none.
const MOST_FITTED_PERCENT: f64 = 1.0;

impl Score {
    /// Of these reports.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Self {
        let (mut score, mut errors) = (Self::default(), Vec::new());
        for report in reports {
            for number in &report.numbers {
                let error = number.error_percent().abs();
                match number.role {
                    Role::Fitted => {
                        score.fitted += 1;
                        // What is no number misses, too.
                        score.misfits += usize::from(error.is_nan() || error > MOST_FITTED_PERCENT);
                    }
                    Role::Predicted => {
                        score.predicted += 1;
                        score.unexplained +=
                            usize::from((error.is_nan() || error > MOST_PERCENT) && number.note.is_none());
                        errors.push(error);
                    }
                    Role::Shown => {}
                }
            }
            for claim in &report.claims {
                score.claims += 1;
                score.hold += usize::from(claim.holds);
                score.unexplained_claims += usize::from(!claim.holds && claim.note.is_none());
            }
        }
        errors.sort_by(f64::total_cmp);
        score.median_error_percent = match errors.len() {
            0 => None,
            count if count % 2 == 1 => Some(errors[count / 2]),
            count => Some(f64::midpoint(errors[count / 2 - 1], errors[count / 2])),
        };
        score
    }

    /// Whether a fit or an order fails, or a number is far off, and nobody says why.
    pub fn fails(&self) -> bool {
        self.misfits + self.unexplained + self.unexplained_claims > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(stated: f64, found: f64, role: Role, note: Option<&'static str>) -> Number {
        Number { what: String::new(), stated, found, unit: "", role, note }
    }

    fn report(numbers: Vec<Number>, claims: &[(bool, Option<&'static str>)]) -> Report {
        let claim = |(holds, note)| Claim { what: String::new(), found: String::new(), holds, note };
        let kind = Kind { document: Document::Qos, class: Class::Protocol, platform: "" };
        let mut report = kind.report("X", "", "", "");
        (report.numbers, report.claims) = (numbers, claims.iter().copied().map(claim).collect());
        report
    }

    #[test]
    fn a_score_is_a_median_and_counts_what_nobody_explains() {
        let numbers = vec![
            number(100.0, 105.0, Role::Predicted, None),
            number(100.0, 80.0, Role::Predicted, None),
            number(10.0, 20.0, Role::Predicted, Some("why")),
            number(10.0, 20.0, Role::Shown, None),
            number(100.0, 100.5, Role::Fitted, None),
        ];
        let good = report(numbers, &[(true, None), (false, Some("why"))]);
        let score = Score::of([&good]);
        assert_eq!((score.fitted, score.predicted, score.median_error_percent), (1, 3, Some(20.0)));
        assert_eq!((score.claims, score.hold, score.fails()), (2, 1, false));
        for bad in [
            report(vec![number(100.0, 131.0, Role::Predicted, None)], &[]),
            report(vec![number(100.0, 102.0, Role::Fitted, None)], &[]),
            report(Vec::new(), &[(false, None)]),
        ] {
            assert!(Score::of([&good, &bad]).fails(), "{bad:?}");
        }
        assert_eq!(Score::of([]).median_error_percent, None);
    }
}
