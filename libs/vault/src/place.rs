//! Where a sealed value belongs.

use crate::KeyId;

/// The one field of the database that a sealed value is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    table: &'static str,
    row: String,
    column: &'static str,
}

impl Place {
    /// The field in the given column of the row with the given id.
    pub fn new(table: &'static str, row: impl ToString, column: &'static str) -> Self {
        Self { table, row: row.to_string(), column }
    }

    /// The associated data of the cipher. Each part has its length in front (4 bytes, big-endian), so that no two
    /// places give the same bytes.
    pub(crate) fn associated_data(&self, key: KeyId) -> Vec<u8> {
        let key = key.to_string();
        let mut data = Vec::new();
        for part in [self.table, &self.row, self.column, &key] {
            data.extend_from_slice(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes());
            data.extend_from_slice(part.as_bytes());
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_a_letter_from_one_part_to_the_next_gives_another_place() {
        let key = KeyId::from_bytes([1, 2, 3, 4]);
        let places = [Place::new("ab", "c", "d"), Place::new("a", "bc", "d"), Place::new("a", "b", "cd")];
        let mut data: Vec<_> = places.iter().map(|place| place.associated_data(key)).collect();
        data.dedup();
        assert_eq!(data.len(), 3);
    }
}
