/** Cron expressions in words. What they mean is decided by the server (`domain/cron.py`); this only says it. */

const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const AND = new Intl.ListFormat("en", { type: "conjunction" });

interface Range {
  first: number;
  last: number;
  /** What may be given, and is not part of `*`. */
  most?: number;
  names?: string[];
}

const FIELDS: Range[] = [
  { first: 0, last: 59 },
  { first: 0, last: 23 },
  { first: 1, last: 31 },
  { first: 1, last: 12, names: MONTHS },
  { first: 0, last: 6, most: 7, names: DAYS },
];

interface Field {
  values: number[];
  /** It lets everything through. */
  every: boolean;
  /** It begins with `*`: a day then has to fit both of its fields. */
  star: boolean;
}

/** What an expression says; undefined if it is none. */
export function inWords(expression: string): string | undefined {
  const parts = expression.trim().split(/\s+/);
  const fields = parts.length === 5 ? parts.map((part, n) => fieldOf(part, FIELDS[n]!)) : [];
  const [minutes, hours, days, months, weekdays] = fields;
  if (!minutes || !hours || !days || !months || !weekdays) return undefined;
  const time = timeOf(minutes, hours);
  const day = dayOf(days, weekdays) || (time.startsWith("every") ? "" : "every day");
  const month = months.every ? "" : `in ${AND.format(months.values.map((month) => MONTHS[month - 1]!))}`;
  const said = [time, day, month].filter((part) => part !== "").join(" ");
  return said[0]!.toUpperCase() + said.slice(1);
}

function fieldOf(part: string, range: Range): Field | undefined {
  const found = new Set<number>();
  for (const item of part.split(",")) {
    const values = itemOf(item, range);
    if (values === undefined) return undefined;
    values.forEach((value) => found.add(range.most === value ? range.first : value));
  }
  const values = [...found].sort((one, other) => one - other);
  return { values, every: values.length === range.last - range.first + 1, star: part.startsWith("*") };
}

function itemOf(item: string, range: Range): number[] | undefined {
  const [, all, from, to, by] = /^(?:(\*)|([0-9a-z]{1,3})(?:-([0-9a-z]{1,3}))?)(?:\/([0-9]{1,3}))?$/i.exec(item) ?? [];
  const first = all ? range.first : numberOf(from, range);
  const last = to !== undefined ? numberOf(to, range) : from !== undefined && by === undefined ? first : range.last;
  const step = by === undefined ? 1 : Number(by);
  if (first === undefined || last === undefined || first > last || step === 0) return undefined;
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, n) => first + n * step);
}

function numberOf(word: string | undefined, range: Range): number | undefined {
  if (word === undefined) return undefined;
  const named = (range.names ?? []).findIndex((name) => name.slice(0, 3).toUpperCase() === word.toUpperCase());
  const value = named >= 0 ? named + range.first : /^[0-9]+$/.test(word) ? Number(word) : -1;
  return value >= range.first && value <= (range.most ?? range.last) ? value : undefined;
}

const MOST_TIMES = 6;

function timeOf(minutes: Field, hours: Field): string {
  const [minute, hour] = [minutes.values, hours.values];
  const few = minute.length * hour.length <= MOST_TIMES;
  const often = few && minute.length > 1 ? undefined : paceOf(minute, 60);
  if (often !== undefined) {
    const pace = often === 1 ? "every minute" : `every ${often} minutes`;
    if (hours.every) return pace;
    if (isRow(hour)) return `${pace} from ${clock(hour[0]!, 0)} to ${clock(hour.at(-1)!, minute.at(-1)!)}`;
    return `${pace} of the hours ${AND.format(hour.map(String))}`;
  }
  if (minute.length === 1) {
    const past = minute[0] === 0 ? "" : minute[0] === 1 ? " at 1 minute past" : ` at ${minute[0]} minutes past`;
    const step = paceOf(hour, 24);
    if (step !== undefined) return `${step === 1 ? "every hour" : `every ${step} hours`}${past}`;
    if (hour.length > 3 && isRow(hour)) return `every hour from ${clock(hour[0]!, minute[0]!)} to ${clock(hour.at(-1)!, minute[0]!)}`;
  }
  if (few) return `at ${AND.format(hour.flatMap((one) => minute.map((two) => clock(one, two))))}`;
  return `at the minutes ${AND.format(minute.map(String))} of ${hours.every ? "every hour" : `the hours ${AND.format(hour.map(String))}`}`;
}

/** Every how many, if these follow each other evenly round the clock. */
function paceOf(values: number[], round: number): number | undefined {
  const step = values.length > 1 ? values[1]! - values[0]! : 0;
  return values[0] === 0 && step > 0 && step * values.length === round && values.every((value, n) => value === n * step) ? step : undefined;
}

const isRow = (values: number[]) => values.every((value, n) => value === values[0]! + n);
const clock = (hour: number, minute: number) => `${String(hour).padStart(2, "0")}:${String(minute).padStart(2, "0")}`;

function dayOf(days: Field, weekdays: Field): string {
  const month = `on the ${AND.format(days.values.map(ordinal))} of the month`;
  const week = weekOf(weekdays.values);
  if (days.every && weekdays.every) return "";
  if (days.star || weekdays.star) {
    if (weekdays.every) return month;
    return days.every ? week : `${month} if that is ${AND.format(weekdays.values.map((day) => `a ${DAYS[day]}`)).replace(" and ", " or ")}`;
  }
  return `${month}, and ${week}`; // both are named: either is enough
}

function weekOf(days: number[]): string {
  if (days.length > 2 && isRow(days)) return `from ${DAYS[days[0]!]} to ${DAYS[days.at(-1)!]}`;
  return `on ${AND.format(days.map((day) => `${DAYS[day]}s`))}`;
}

function ordinal(day: number): string {
  const ends: Record<string, string> = { one: "st", two: "nd", few: "rd", other: "th" };
  return `${day}${ends[new Intl.PluralRules("en", { type: "ordinal" }).select(day)]}`;
}
