"use strict";
// Shows an OpenAPI description as a page to read. All text is set as text, never as HTML.

function make(tag, text, classes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (classes) element.className = classes;
  return element;
}

/** Says a schema in words: `list of Line`, `integer ≥ 1`, `string or null`. */
function typeOf(schema) {
  if (!schema || !Object.keys(schema).length) return "anything";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
  if (schema.type === "object" && typeof schema.additionalProperties === "object") return `object of ${typeOf(schema.additionalProperties)}`;
  const limits = [["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["maxLength", "length ≤"], ["minItems", "items ≥"]]
    .filter(([key]) => schema[key] !== undefined).map(([key, sign]) => `${sign} ${schema[key]}`);
  return [schema.type || "anything", ...limits].join(" ");
}

function table(heads, rows) {
  const wide = make("div", undefined, "wide");
  const shown = make("table");
  const head = make("tr");
  head.append(...heads.map((name) => make("th", name)));
  shown.createTHead().append(head);
  const body = shown.createTBody();
  for (const row of rows) {
    const line = make("tr");
    line.append(...row.map((cell, n) => make("td", cell, n ? "text" : "")));
    body.append(line);
  }
  wide.append(shown);
  return wide;
}

function operation(method, path, described) {
  const section = make("section");
  section.append(make("h2", `${method.toUpperCase()} ${path}`), make("p", described.summary || ""));
  if (described.description) section.append(make("p", described.description, "soft"));
  const parameters = (described.parameters || []).map((parameter) =>
    [parameter.name, `${parameter.in}, ${typeOf(parameter.schema)}`, parameter.description || parameter.schema.description || ""]);
  if (parameters.length) section.append(table(["Parameter", "What", "Meaning"], parameters));
  const content = described.requestBody?.content?.["application/json"];
  if (content) section.append(make("p", `Body: ${typeOf(content.schema)}`));
  const answer = Object.values(described.responses?.["200"]?.content || {})[0];
  if (answer) section.append(make("p", `Answer: ${typeOf(answer.schema)}`));
  return section;
}

async function show() {
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const api = await answer.json();
    document.getElementById("title").textContent = `${api.info.title} ${api.info.version}`;
    for (const [path, methods] of Object.entries(api.paths))
      for (const [method, described] of Object.entries(methods))
        document.getElementById("operations").append(operation(method, path, described));
    for (const [name, schema] of Object.entries(api.components?.schemas || {})) {
      const section = make("section");
      section.append(make("h2", name));
      if (schema.description) section.append(make("p", schema.description, "soft"));
      const required = new Set(schema.required || []);
      section.append(table(["Field", "Type", "Meaning"], Object.entries(schema.properties || {}).map(([field, value]) =>
        [field, typeOf(value) + (required.has(field) || value.default === undefined ? "" : `, default ${JSON.stringify(value.default)}`), value.description || ""])));
      document.getElementById("models").append(section);
    }
  } catch (error) {
    const banner = document.getElementById("banner");
    banner.hidden = false;
    banner.textContent = `The description cannot be read: ${error.message}`;
  }
}

show();
