//! The numbers that steer a model.

use super::models::Model;
use super::quirks::Quirks;
use crate::hub::{Effort, Setting, SettingKind};

/// What a setting is called at a provider; `None` where the provider or its model, told that effort, refuses it.
pub(super) fn name_of(
    setting: &Setting<'_>,
    quirks: Quirks,
    model: Model,
    effort: Option<Effort>,
) -> Option<&'static str> {
    match setting.kind {
        SettingKind::Temperature => model.samples_with(effort).then_some("temperature"),
        SettingKind::TopP => model.samples_with(effort).then_some("top_p"),
        SettingKind::TopK => quirks.top_k.then_some("top_k"),
        SettingKind::Seed => quirks.seed,
        SettingKind::FrequencyPenalty => model.penalties.then_some("frequency_penalty"),
        SettingKind::PresencePenalty => model.penalties.then_some("presence_penalty"),
    }
}

/// Whether a setting is what it is anyway (OpenAI API reference, Create chat completion).
pub(super) fn is_usual(setting: &Setting<'_>) -> bool {
    let usual = match setting.kind {
        SettingKind::Temperature | SettingKind::TopP => 1.0,
        SettingKind::FrequencyPenalty | SettingKind::PresencePenalty => 0.0,
        SettingKind::TopK | SettingKind::Seed => return false,
    };
    setting.value.get().parse() == Ok(usual)
}
