//! CRC-64 with the polynomial of Jones, reflected: the checksum at the end of RDB files.

const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

static TABLE: [u64; 256] = table();

const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut sum, mut bit) = (index as u64, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 {
                sum >> 1 ^ POLYNOMIAL
            } else {
                sum >> 1
            };
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
}

/// The sum of all bytes before and these; it begins with 0.
pub(crate) fn update(sum: u64, bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| TABLE[(sum as u8 ^ byte) as usize] ^ sum >> 8;
    bytes.iter().fold(sum, step)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_check_value_of_redis() {
        assert_eq!(super::update(0, b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }
}
