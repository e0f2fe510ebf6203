//! How much a model is to think, in the words that it has.

use super::conversation::{Effort, Reasoning};

impl Effort {
    const ALL: [Self; 6] = [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Highest];

    fn rank(self) -> usize {
        Self::ALL.iter().position(|effort| *effort == self).unwrap_or_default()
    }

    /// The effort of those that a model has which comes nearest to this one, the lower of two; `None` where it has none.
    pub(crate) fn nearest(self, known: &[Self]) -> Option<Self> {
        known.iter().copied().min_by_key(|effort| (effort.rank().abs_diff(self.rank()), effort.rank()))
    }
}

impl Reasoning {
    /// The effort that is asked for, or that the budget comes near to. No reference says what an effort is in tokens; the
    /// bounds are ours, between the budgets that Gemini's own OpenAI-compatible API gives to efforts (1,024, 8,192 and
    /// 24,576: Gemini API, OpenAI compatibility, Thinking).
    pub(crate) fn as_effort(&self) -> Option<Effort> {
        self.effort.or_else(|| {
            Some(match self.budget? {
                0 => Effort::None,
                1..4096 => Effort::Low,
                4096..16_384 => Effort::Medium,
                _ => Effort::High,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_effort_is_taken_and_of_two_the_lower() {
        use Effort::{High, Highest, Low, Medium, Minimal, None as Never};
        for (asked, known, taken) in [
            (Minimal, &[Never, Low, Medium, High][..], Some(Never)),
            (Minimal, &[Low, High][..], Some(Low)),
            (Medium, &[Low, High][..], Some(Low)),
            (Highest, &[Minimal, Low, Medium, High][..], Some(High)),
            (Never, &[Minimal, Low][..], Some(Minimal)),
            (High, &[High][..], Some(High)),
            (High, &[][..], None),
        ] {
            assert_eq!(asked.nearest(known), taken, "{asked:?} {known:?}");
        }
    }
}
