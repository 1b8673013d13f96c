//! Text tables.

/// A table of text.
pub struct Table {
    indent: usize,
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    pub fn new(indent: usize) -> Table {
        Table {
            indent,
            rows: Vec::new(),
            right: Vec::new(),
        }
    }

    /// Columns of numbers, which end below each other.
    pub fn right(mut self, columns: &[usize]) -> Table {
        self.right = columns.to_vec();
        self
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn print(&self) {
        print!("{}", self.text());
    }

    fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, cell) in row.iter().enumerate() {
                let width = widths[column];
                if self.right.contains(&column) {
                    line += &format!("{cell:>width$}  ");
                } else {
                    line += &format!("{cell:<width$}  ");
                }
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1).right(&[1]);
        table.row(["a", "1", "x"].map(str::to_owned));
        table.row(["long", "200", "yy"].map(str::to_owned));
        assert_eq!(table.text(), " a       1  x\n long  200  yy\n");
    }
}
